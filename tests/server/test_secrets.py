"""Whatever a caller sends and whatever goes wrong, no key and no text is logged or told."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from radixserve.config import HttpConfig, KeyConfig, ObserveConfig, ServerConfig
from radixserve.server.auth import CALLER
from radixserve.server.errors import error_middleware
from radixserve.server.state import ENGINE
from tests.server.conftest import connected

if TYPE_CHECKING:
    from tests.server.conftest import ServeShared

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEY, OTHER, ADMIN, WRONG = "sk-k1-secret", "sk-k2-secret", "sk-a1-secret", "sk-w1-secret"
TEXT = "my private words"
KEYS = KeyConfig(api_keys=(KEY, OTHER), admin_api_keys=(ADMIN,))

CALLS: list[tuple[str, str, Any]] = [
    ("GET", "/health", None),
    ("GET", "/metrics", None),
    ("GET", "/v1/models", None),
    ("GET", f"/v1/models/{WRONG}", None),
    ("GET", f"/{WRONG}", None),
    ("PUT", "/v1/completions", None),
    ("POST", "/v1/completions", {"prompt": TEXT, "max_tokens": 2}),
    ("POST", "/v1/completions", {"prompt": TEXT, "max_tokens": 2, "stream": True}),
    ("POST", "/v1/completions", {"prompt": TEXT, "temperature": "hot"}),
    ("POST", "/v1/completions", {"prompt": TEXT, "max_tokens": 10**9}),
    ("POST", "/v1/completions", {"prompt": TEXT * 1000}),
    ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": TEXT}]}),
    ("POST", "/v1/chat/completions", {"messages": [{"role": TEXT, "content": TEXT}]}),
]


async def test_nothing_logged_holds_a_key_or_a_text(
    serve_shared: ServeShared, caplog: pytest.LogCaptureFixture
) -> None:
    config = HttpConfig(keys=KEYS, observe=ObserveConfig(access_log="text"))
    client = await serve_shared(config)
    told = []
    with caplog.at_level(logging.DEBUG):
        for key in (KEY, OTHER, ADMIN, WRONG):
            for header in ({"Authorization": f"Bearer {key}"}, {"X-Api-Key": key}):
                for method, path, body in CALLS:
                    response = await client.request(method, path, json=body, headers=header)
                    told.append(f"{dict(response.headers)} {await response.text()}")
        logging.getLogger("radixserve.test").debug("%r", ServerConfig(http=config))
        logging.getLogger("radixserve.test").debug("%r", client.app[ENGINE])
    # The test server has aiohttp's own access log, which `run.serve` replaces.
    records = [record for record in caplog.records if record.name != "aiohttp.access"]
    logged = "\n".join(logging.Formatter().format(record) for record in records)
    assert "key-1" in logged
    assert "admin-1" in logged
    for secret in (KEY, OTHER, ADMIN, WRONG, TEXT):
        assert secret not in logged
    # The caller itself is told a model's name back, and what it said where that is at fault.
    for secret in (KEY, OTHER, ADMIN):
        assert not any(secret in each for each in told)


async def test_a_crash_tells_no_key(caplog: pytest.LogCaptureFixture) -> None:
    async def crash(request: web.Request) -> web.Response:
        raise ZeroDivisionError(repr(request.get(CALLER)))

    app = web.Application(middlewares=[error_middleware])
    app.router.add_get("/crash", crash)
    with caplog.at_level(logging.DEBUG):
        async with connected(app) as client:
            response = await client.get("/crash", headers={"Authorization": f"Bearer {KEY}"})
            assert response.status == 500
            assert KEY not in await response.text()
    assert KEY not in caplog.text
