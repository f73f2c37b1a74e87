"""One line for each call, with what an operator asks for and nothing that is secret."""

from __future__ import annotations

import io
import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

from radixserve.config import HttpConfig, KeyConfig, ObserveConfig
from radixserve.server.access_log import logger, write_bare_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.server.conftest import ServeShared

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEY = "sk-very-secret"
BEARER = {"Authorization": f"Bearer {KEY}", "X-Request-Id": "call-7"}
CALL = {"prompt": "Once upon a time", "max_tokens": 4, "ignore_eos": True, "temperature": 0}


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """Collect what the access log writes."""
    found: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    handler = Collector()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield found
    logger.removeHandler(handler)
    logger.setLevel(level)


def config(style: Any, **fields: Any) -> HttpConfig:
    keys = KeyConfig(api_keys=(KEY, "sk-other"))
    return HttpConfig(keys=keys, observe=ObserveConfig(access_log=style), **fields)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_json_line_tells_what_a_call_was_and_cost(
    stream: bool, serve_shared: ServeShared, lines: list[str]
) -> None:
    client = await serve_shared(config("json"))
    response = await client.post(
        "/v1/completions", json=CALL | {"stream": stream, "n": 1}, headers=BEARER
    )
    await response.read()
    [line] = lines
    told = json.loads(line)
    assert {name: told[name] for name in ("request_id", "key", "method", "route", "status")} == {
        "request_id": "call-7",
        "key": "key-1",
        "method": "POST",
        "route": "/v1/completions",
        "status": 200,
    }
    assert told["output_tokens"] == 4
    assert told["prompt_tokens"] > told["cached_tokens"] >= 0
    assert told["finish_reasons"] == ["length"]
    assert 0 < told["ttft_s"] <= told["duration_s"]
    assert told["error"] is None
    assert KEY not in line


async def test_what_is_refused_has_a_line_with_the_reason(
    serve_shared: ServeShared, lines: list[str]
) -> None:
    client = await serve_shared(config("json"))
    await client.get("/v1/models", headers={"Authorization": "Bearer sk-wrong-secret"})
    await client.get("/nothing/sk-in-a-path", headers=BEARER)
    await client.post("/v1/completions", json={"prompt": 7}, headers=BEARER)
    told = [json.loads(line) for line in lines]
    assert [(each["status"], each["error"], each["route"], each["key"]) for each in told] == [
        (401, "invalid_api_key", "/v1/models", None),
        (404, "not_found", "(none)", "key-1"),
        (400, told[2]["error"], "/v1/completions", "key-1"),
    ]
    assert "sk-" not in "".join(lines)


async def test_a_text_line_leaves_out_what_does_not_apply(
    serve_shared: ServeShared, lines: list[str]
) -> None:
    client = await serve_shared(config("text"))
    await client.get("/v1/models", headers=BEARER)
    [line] = lines
    assert line.startswith("request_id=call-7 key=key-1 method=GET route=/v1/models status=200 dur")
    assert "None" not in line
    assert "error" not in line


async def test_probes_that_went_well_have_no_line(
    serve_shared: ServeShared, lines: list[str]
) -> None:
    client = await serve_shared(config("text"))
    for path in ("/health", "/ready"):
        await client.get(path)
    await client.get("/metrics", headers=BEARER)
    assert lines == []
    await client.get("/metrics")
    assert "status=401" in lines[0]


async def test_off_is_silent(serve_shared: ServeShared, lines: list[str]) -> None:
    client = await serve_shared(config("off"))
    await client.get("/v1/models", headers=BEARER)
    assert lines == []


async def test_json_lines_are_bare(serve_shared: ServeShared) -> None:
    written = io.StringIO()
    before = (logger.level, logger.propagate, list(logger.handlers))
    try:
        write_bare_lines(written)
        client = await serve_shared(config("json"))
        await client.get("/v1/models", headers=BEARER)
    finally:
        logger.level, logger.propagate, logger.handlers[:] = before
    assert json.loads(written.getvalue())["route"] == "/v1/models"
