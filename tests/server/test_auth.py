"""With a key set, every route but three asks for it, in OpenAI's error body."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from radixserve.config import HttpConfig
from radixserve.server.auth import OPEN_PATHS

if TYPE_CHECKING:
    from aiohttp import web

    from tests.server.conftest import Client, ServeShared

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEY = "sk-right"
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
    {"X-Api-Key": KEY},
]


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
    return await serve_shared(HttpConfig(api_key=KEY))


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
            assert (await response.json())["error"]["code"] == "invalid_api_key"


async def test_the_open_routes_are_three_and_need_no_key(guarded: Client) -> None:
    found = [path for method, path in routes_of(guarded.app) if method == "GET"]
    assert set(found) >= {"/health", "/ready", "/metrics"} == OPEN_PATHS
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
    headers = [("Authorization", f"Bearer {KEY}"), ("Authorization", "Bearer sk-wrong")]
    assert (await guarded.get("/v1/models", headers=headers)).status == 401


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_the_right_key_opens(scheme: str, guarded: Client) -> None:
    response = await guarded.get("/v1/models", headers={"Authorization": f"{scheme} {KEY}"})
    assert response.status == 200


async def test_without_a_key_set_everything_is_open(client: Client) -> None:
    assert (await client.get("/v1/models")).status == 200
