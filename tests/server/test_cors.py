"""Web pages of other origins: nothing unless asked for, then exactly what browsers need."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from radixserve.config import HttpConfig, KeyConfig

if TYPE_CHECKING:
    from tests.server.conftest import Client, ServeShared

pytestmark = pytest.mark.asyncio(loop_scope="session")

ORIGIN = "https://example.org"
ASKS = {
    "Origin": ORIGIN,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization, content-type",
}
GUARD = KeyConfig(api_keys=("sk",))


def cors_headers(headers: object) -> dict[str, str]:
    named = dict(headers)  # type: ignore[call-overload]
    return {name: named[name] for name in named if name.startswith("Access-Control-")}


async def test_by_default_no_page_is_told_anything(client: Client) -> None:
    asked = await client.options("/v1/completions", headers=ASKS)
    told = await client.get("/v1/models", headers={"Origin": ORIGIN})
    assert asked.status == 405
    assert cors_headers(asked.headers) == cors_headers(told.headers) == {}


async def test_a_named_origin_may_ask_before_it_sends_its_key(serve_shared: ServeShared) -> None:
    client = await serve_shared(HttpConfig(cors_origins=(ORIGIN,), keys=GUARD))
    response = await client.options("/v1/completions", headers=ASKS)
    assert response.status == 204
    assert cors_headers(response.headers) == {
        "Access-Control-Allow-Origin": ORIGIN,
        "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
        "Access-Control-Allow-Headers": "authorization, content-type",
        "Access-Control-Max-Age": "600",
        "Access-Control-Expose-Headers": "X-Request-Id, Retry-After",
    }


async def test_an_error_can_be_read_by_the_page_too(serve_shared: ServeShared) -> None:
    client = await serve_shared(HttpConfig(cors_origins=(ORIGIN,), keys=GUARD))
    response = await client.get("/v1/models", headers={"Origin": ORIGIN})
    assert response.status == 401
    assert response.headers["Access-Control-Allow-Origin"] == ORIGIN
    assert response.headers["Vary"] == "Origin"


async def test_a_stream_can_be_read_by_the_page_too(serve_shared: ServeShared) -> None:
    client = await serve_shared(HttpConfig(cors_origins=(ORIGIN,)))
    body = {"prompt": "Once", "max_tokens": 2, "stream": True}
    response = await client.post("/v1/completions", json=body, headers={"Origin": ORIGIN})
    assert response.headers["Access-Control-Allow-Origin"] == ORIGIN
    assert (await response.text()).endswith("data: [DONE]\n\n")


@pytest.mark.parametrize(
    "origin", ["https://example.com", "http://example.org", "null", ORIGIN + ":1"]
)
async def test_other_origins_are_told_nothing(origin: str, serve_shared: ServeShared) -> None:
    client = await serve_shared(HttpConfig(cors_origins=(ORIGIN,), keys=GUARD))
    asked = await client.options("/v1/completions", headers=ASKS | {"Origin": origin})
    told = await client.get("/health", headers={"Origin": origin})
    assert (asked.status, told.status) == (401, 200)
    assert cors_headers(asked.headers) == cors_headers(told.headers) == {}


async def test_a_star_is_every_origin(serve_shared: ServeShared) -> None:
    client = await serve_shared(HttpConfig(cors_origins=("*",)))
    response = await client.get("/v1/models", headers={"Origin": "https://any.example"})
    assert response.headers["Access-Control-Allow-Origin"] == "*"
    assert "Vary" not in response.headers
