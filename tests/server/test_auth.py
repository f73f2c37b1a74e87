"""With keys set, every route but two asks for one; admin routes ask for an admin's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from aiohttp import web

from radixserve.config import HttpConfig, KeyConfig
from radixserve.server.auth import OPEN_PATHS, is_admin, is_loopback, require_admin, require_api_key
from radixserve.server.errors import error_middleware
from radixserve.server.keys import load_keys
from tests.server.conftest import connected

if TYPE_CHECKING:
    from tests.server.conftest import Client, ServeShared

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEY = "sk-right"
OTHER = "sk-other"
ADMIN = "sk-admin"
WRONG = [
    {},
    {"Authorization": ""},
    {"Authorization": "Bearer"},
    {"Authorization": "Bearer "},
    {"Authorization": "Bearer sk-wrong"},
    {"Authorization": f"Bearer {KEY}x"},
    {"Authorization": f"Bearer {KEY[:-1]}"},
    {"Authorization": KEY},
    {"Authorization": f"Basic {KEY}"},
    {"Authorization": f"Bearer {KEY} {KEY}"},
    {"Authorization": "Bearer sk-\u00fc"},
    {"X-Api-Key": ""},
    {"X-Api-Key": "sk-wrong"},
    {"X-Api-Key": f"Bearer {KEY}"},
    {"X-Api-Key": KEY, "Authorization": f"Basic {KEY}"},
    {"X-Api-Key": KEY, "Authorization": f"Bearer {OTHER}"},
]


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def routes_of(app: web.Application) -> list[tuple[str, str]]:
    """Return (method, path) of every route, with something in place of its variables."""
    routes = []
    for route in app.router.routes():
        assert route.resource is not None
        path = route.resource.canonical.replace("{model}", "some-model")
        routes.append((route.method, path))
    return routes


@pytest_asyncio.fixture(loop_scope="session")
async def guarded(serve_shared: ServeShared) -> Client:
    keys = KeyConfig(api_keys=(KEY, OTHER), admin_api_keys=(ADMIN,))
    return await serve_shared(HttpConfig(keys=keys))


@pytest.mark.parametrize("headers", WRONG)
async def test_every_route_but_the_open_ones_asks_for_the_key(
    headers: dict[str, str], guarded: Client
) -> None:
    routes = [route for route in routes_of(guarded.app) if route[1] not in OPEN_PATHS]
    assert len(routes) >= 6
    for method, path in routes:
        response = await guarded.request(method, path, headers=headers)
        assert (response.status, method, path) == (401, method, path)
        assert response.headers["WWW-Authenticate"] == "Bearer"
        if method != "HEAD":
            error = (await response.json())["error"]
            assert error["type"] == "authentication_error"
            assert error.get("code", "invalid_api_key") == "invalid_api_key"


async def test_the_open_routes_are_two_and_need_no_key(guarded: Client) -> None:
    found = [path for method, path in routes_of(guarded.app) if method == "GET"]
    assert set(found) >= {"/health", "/ready"} == OPEN_PATHS
    for path in OPEN_PATHS:
        assert (await guarded.get(path)).status == 200


@pytest.mark.parametrize("path", ["/", "/nothing", "/health/", "/v1/models/../../health"])
async def test_paths_without_a_route_are_closed_too(path: str, guarded: Client) -> None:
    response = await guarded.get(path)
    assert response.status in (200, 401)
    assert (response.status == 200) == (response.url.path == "/health")


async def test_open_paths_are_open_for_reading_only(guarded: Client) -> None:
    assert (await guarded.post("/health")).status == 401


async def test_two_keys_are_none(guarded: Client) -> None:
    headers = [("Authorization", f"Bearer {KEY}"), ("Authorization", f"Bearer {OTHER}")]
    assert (await guarded.get("/v1/models", headers=headers)).status == 401


@pytest.mark.parametrize("key", [KEY, OTHER, ADMIN])
async def test_each_right_key_opens_in_either_header(key: str, guarded: Client) -> None:
    for headers in (
        *({"Authorization": f"{scheme} {key}"} for scheme in ("Bearer", "bearer", "BEARER")),
        {"X-Api-Key": key},
        {"X-Api-Key": key, "Authorization": f"Bearer {key}"},
    ):
        assert (await guarded.get("/v1/models", headers=headers)).status == 200
        assert (await guarded.get("/metrics", headers=headers)).status == 200


async def test_without_a_key_set_everything_is_open(client: Client) -> None:
    assert (await client.get("/v1/models")).status == 200
    assert (await client.get("/metrics")).status == 200


# Admins


def admin_app(keys: KeyConfig, host: str) -> web.Application:
    async def rule(request: web.Request) -> web.Response:
        require_admin(request)
        return web.Response(text="done")

    async def look(request: web.Request) -> web.Response:
        return web.json_response(is_admin(request))

    app = web.Application(
        middlewares=[error_middleware, require_api_key(load_keys(keys, {}), host=host)]
    )
    app.router.add_get("/rule", rule)
    app.router.add_get("/look", look)
    return app


BOTH = KeyConfig(api_keys=(KEY,), admin_api_keys=(ADMIN,))
USERS = KeyConfig(api_keys=(KEY,))
ADMINS = KeyConfig(admin_api_keys=(ADMIN,))


@pytest.mark.parametrize(
    ("keys", "host", "shown", "status"),
    [
        (BOTH, "127.0.0.1", None, 401),
        (BOTH, "127.0.0.1", KEY, 403),
        (BOTH, "127.0.0.1", ADMIN, 200),
        (BOTH, "0.0.0.0", ADMIN, 200),
        (USERS, "127.0.0.1", KEY, 403),
        (ADMINS, "127.0.0.1", None, 401),
        (ADMINS, "127.0.0.1", ADMIN, 200),
        (KeyConfig(), "127.0.0.1", None, 200),
        (KeyConfig(), "::1", None, 200),
        (KeyConfig(), "localhost", None, 200),
        (KeyConfig(), "0.0.0.0", None, 403),
        (KeyConfig(), "::", None, 403),
        (KeyConfig(), "example.org", None, 403),
    ],
)
async def test_admin_routes_need_an_admin(
    keys: KeyConfig, host: str, shown: str | None, status: int
) -> None:
    headers = {} if shown is None else bearer(shown)
    async with connected(admin_app(keys, host)) as client:
        response = await client.get("/rule", headers=headers)
        assert response.status == status
        if status == 403:
            error = (await response.json())["error"]
            assert (error["type"], error["code"]) == ("permission_error", "admin_key_required")
            assert "--admin-api-key" in error["message"]
        if status in (200, 403):
            assert await (await client.get("/look", headers=headers)).json() == (status == 200)


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True)]
    + [(host, False) for host in ("0.0.0.0", "::", "10.0.0.1", "", "localhost.example.org")],
)
async def test_loopback_is_known_by_its_address(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


# Isolation


async def cached_tokens(client: Client, key: str | None, prompt: str, **fields: Any) -> int:
    body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, **fields}
    headers = {} if key is None else bearer(key)
    response = await client.post("/v1/completions", json=body, headers=headers)
    answer = await response.json()
    assert response.status == 200, answer
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def long_text(word: str) -> str:
    return f"{word} once upon a time there was a tree that remembered everything " * 3


async def test_keys_do_not_share_cached_prefixes(guarded: Client) -> None:
    text = long_text("apart")
    assert await cached_tokens(guarded, KEY, text) == 0
    assert await cached_tokens(guarded, OTHER, text) == 0
    assert await cached_tokens(guarded, ADMIN, text) == 0
    assert await cached_tokens(guarded, KEY, text) > 0


async def test_no_salt_leads_into_another_keys_prefixes(guarded: Client) -> None:
    text = long_text("salted")
    assert await cached_tokens(guarded, KEY, text) == 0
    for salt in ("key-1", "key-1:", "\x00key-1", "owner=key-1"):
        assert await cached_tokens(guarded, OTHER, text, cache_salt=salt) == 0
    assert await cached_tokens(guarded, OTHER, text, cache_salt="key-1") > 0


async def test_keys_share_prefixes_where_that_is_asked_for(serve_shared: ServeShared) -> None:
    keys = KeyConfig(api_keys=(KEY, OTHER), share_cache=True)
    client = await serve_shared(HttpConfig(keys=keys))
    text = long_text("together")
    assert await cached_tokens(client, KEY, text) == 0
    assert await cached_tokens(client, OTHER, text) > 0


async def test_a_single_key_and_its_admin_share_prefixes(serve_shared: ServeShared) -> None:
    client = await serve_shared(HttpConfig(keys=BOTH))
    text = long_text("single")
    assert await cached_tokens(client, KEY, text) == 0
    assert await cached_tokens(client, ADMIN, text) > 0
