"""The routes below ``/cache`` and ``GET /requests``, over the real server and a tiny model."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from radixserve.config import CacheConfig, HttpConfig, KeyConfig
from radixserve.core.invariants import check
from radixserve.server.app import build_app
from tests.server.events import parse_events, post, text_of, until

if TYPE_CHECKING:
    from radixserve.config import EngineConfig
    from radixserve.engine.async_engine import AsyncEngine
    from tests.server.conftest import Client, OpenClient, StartEngine

PROMPT = [100, *range(5, 68), 4]
"""Four blocks and a token."""
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "the parrot"}]
ADMIN_ROUTES = [
    ("GET", "/requests"),
    ("POST", "/cache/pin"),
    ("POST", "/cache/unpin"),
    ("POST", "/cache/flush"),
]
KEYED_ROUTES = [*ADMIN_ROUTES, ("GET", "/cache"), ("GET", "/cache/tree"), ("POST", "/cache/warm")]


@pytest.fixture
async def engine(start_engine: StartEngine, engine_config: EngineConfig) -> AsyncEngine:
    """An engine of this test's own, with 64 blocks."""
    return await start_engine(dataclasses.replace(engine_config, cache=CacheConfig(num_blocks=64)))


@pytest.fixture
async def server(engine: AsyncEngine, open_client: OpenClient) -> Client:
    """A server without keys on loopback: everybody is an admin."""
    return await open_client(build_app(engine, HttpConfig()))


async def get(client: Client, path: str, **params: Any) -> dict[str, Any]:
    response = await client.get(path, params=params)
    answer = await response.json()
    assert response.status == 200, answer
    return dict(answer)


async def refused(client: Client, path: str, body: Any, status: int, **fields: Any) -> str:
    """Return the message of an error in the usual envelope."""
    response = await client.post(path, json=body)
    error = (await response.json())["error"]
    assert response.status == status, error
    assert {name: error[name] for name in fields} == fields
    return str(error["message"])


async def cached_tokens(client: Client, prompt: Any = None, **fields: Any) -> int:
    body = {"prompt": prompt or PROMPT, "max_tokens": 1, **fields}
    answer = await post(client, "/v1/completions", body)
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


# -- B9: a flush while somebody is using the cache -----------------------------------------------


async def test_b9_a_flush_during_a_stream_leaves_the_stream_and_the_server_alive(
    server: Client, engine: AsyncEngine
) -> None:
    body = {"prompt": PROMPT, "max_tokens": 200, "temperature": 0, "ignore_eos": True}
    whole = await post(server, "/v1/completions", body)
    await post(server, "/cache/flush", {})

    response = await server.post("/v1/completions", json={**body, "stream": True})
    first = await response.content.readuntil(b"\n\n")
    done = await post(server, "/cache/flush", {})
    check(engine.core.scheduler)
    chunks = parse_events(first + await response.read())

    assert done["kept_blocks"] >= 4
    text = "".join(text_of(choice) for chunk in chunks for choice in chunk["choices"])
    assert text == text_of(whole["choices"][0])
    assert await post(server, "/v1/completions", body) | {"id": 0, "created": 0, "usage": 0} == (
        whole | {"id": 0, "created": 0, "usage": 0}
    )


async def test_b9_a_flush_right_after_an_answer_succeeds_a_hundred_times(server: Client) -> None:
    for _ in range(100):
        assert await cached_tokens(server) == 0
        done = await post(server, "/cache/flush", {})
        assert (done["flushed_blocks"], done["flushed_tokens"], done["kept_blocks"]) == (4, 64, 0)


async def test_a_flush_without_a_body_flushes_everything(server: Client) -> None:
    await cached_tokens(server)
    await cached_tokens(server, cache_salt="a")

    response = await server.post("/cache/flush")

    assert (await response.json())["flushed_blocks"] == 8


async def test_a_flush_of_one_salt_leaves_the_others(server: Client) -> None:
    for salt in (None, "a", "b"):
        await cached_tokens(server, cache_salt=salt)

    done = await post(server, "/cache/flush", {"cache_salt": "a"})
    assert done["flushed_blocks"] == 4
    assert (await post(server, "/cache/flush", {"cache_salt": ""}))["flushed_blocks"] == 4

    assert await cached_tokens(server, cache_salt="b") == 64
    assert await cached_tokens(server, cache_salt="a") == 0


# -- what can be seen ----------------------------------------------------------------------------


async def test_the_cache_tells_its_sizes_and_hits(server: Client) -> None:
    for salt in ("a", "a", "b"):
        await cached_tokens(server, cache_salt=salt)

    seen = await get(server, "/cache")

    assert seen["capacity_tokens"] == 64 * 16
    assert seen["blocks"] == {
        "total": 64,
        "free": 56,
        "private": 0,
        "evictable": 8,
        "protected": 0,
    }
    assert (seen["prompt_tokens"], seen["hit_tokens"]) == (195, 64)
    by_salt = {each["cache_salt"]: each for each in seen["namespaces"]}
    assert by_salt["a"]["hit_rate"] == round(64 / 130, 4)
    assert (by_salt["b"]["cached_tokens"], by_salt["b"]["hit_tokens"]) == (64, 0)
    only = await get(server, "/cache", cache_salt="b")
    assert [each["cache_salt"] for each in only["namespaces"]] == ["b"]


async def test_the_tree_is_shown_with_texts_to_an_admin(
    server: Client, engine: AsyncEngine
) -> None:
    await cached_tokens(server)
    await cached_tokens(server, [*PROMPT[:32], *range(200, 240)])

    seen = await get(server, "/cache/tree")

    [space] = seen["namespaces"]
    [top] = space["runs"]
    assert (seen["num_shown"], seen["is_complete"]) == (3, True)
    assert (top["start"], top["tokens"], top["tokens_below"], top["hits"]) == (0, 32, 64, 2)
    assert top["text"] == engine.tokenizer.decode(PROMPT[:32], skip_special_tokens=False)
    assert [child["start"] for child in top["children"]] == [32, 32]
    assert (await get(server, "/cache/tree", limit=1, by="hits"))["num_shown"] == 1
    assert (await get(server, "/cache/tree", depth=1))["num_shown"] == 1


async def test_the_tree_is_drawn_for_people(server: Client) -> None:
    await cached_tokens(server)
    await cached_tokens(server, [*PROMPT[:32], *range(200, 240)])

    response = await server.get("/cache/tree", headers={"Accept": "text/plain"})
    drawn = (await response.text()).splitlines()

    assert response.content_type == "text/plain"
    assert drawn[0] == "by tokens: 3 of 3 runs"
    assert drawn[2] == 'cache_salt ""  96 tokens'
    assert drawn[3].startswith(" `- 0..32  32 tokens  0 users  2 hits  ")
    assert [line[:15] for line in drawn[4:]] == ["     |- 32..64 ", "     `- 32..64 "]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"limit": "0"}, "limit"),
        ({"limit": "201"}, "limit"),
        ({"depth": "x"}, "depth"),
        ({"by": "age"}, "by"),
        ({"sort": "hits"}, "sort"),
    ],
)
async def test_a_wrong_query_is_refused_by_name(
    query: dict[str, str], param: str, server: Client
) -> None:
    response = await server.get("/cache/tree", params=query)
    assert response.status == 400
    assert (await response.json())["error"]["param"] == param


async def test_an_explanation_says_where_a_prompt_leaves_the_cache(
    server: Client, engine: AsyncEngine
) -> None:
    await cached_tokens(server)

    seen = await post(server, "/cache/explain", {"prompt": [*PROMPT[:40], 200, 201]})

    assert (seen["prompt_tokens"], seen["cached_tokens"], seen["diverges_at"]) == (42, 40, 40)
    assert (seen["shared_tokens"], seen["copied_tokens"], seen["computed_tokens"]) == (32, 8, 2)
    text = engine.tokenizer.decode(PROMPT[40:48], skip_special_tokens=False)
    assert seen["next_in_tree"] == [{"tokens": PROMPT[40:48], "text": text}]
    assert (seen["would_be_admitted"], seen["reasons"]) == (True, [])
    assert seen["memory"] == {"needed_blocks": 1, "reserved_blocks": 0, "available_blocks": 62}
    assert await cached_tokens(server, [*PROMPT[:40], 200, 201]) == 40


async def test_a_chat_is_explained_as_it_would_be_rendered(server: Client) -> None:
    await post(server, "/v1/chat/completions", {"messages": CHAT, "max_tokens": 20})

    seen = await post(server, "/cache/explain", {"messages": CHAT})
    answer = await post(server, "/v1/chat/completions", {"messages": CHAT, "max_tokens": 1})

    assert seen["prompt_tokens"] == answer["usage"]["prompt_tokens"]
    details = answer["usage"]["prompt_tokens_details"]
    assert seen["cached_tokens"] == details["cached_tokens"] > 0


async def test_a_prompt_that_never_fits_is_told_so(server: Client) -> None:
    seen = await post(server, "/cache/explain", {"prompt": [5], "max_tokens": 10**6})
    assert seen["would_be_admitted"] is False
    assert [reason["reason"] for reason in seen["reasons"]] == ["never"]


async def test_live_requests_are_listed_with_what_they_wait_for(
    start_engine: StartEngine, engine_config: EngineConfig, open_client: OpenClient
) -> None:
    scheduler = dataclasses.replace(engine_config.scheduler, max_num_seqs=1)
    engine = await start_engine(dataclasses.replace(engine_config, scheduler=scheduler))
    server = await open_client(build_app(engine, HttpConfig()))
    body = {"prompt": PROMPT, "max_tokens": 400, "ignore_eos": True, "stream": True}
    running = await server.post("/v1/completions", json={**body, "priority": 1})
    await running.content.readuntil(b"\n\n")
    waiting = asyncio.create_task(server.post("/v1/completions", json={**body, "user": "me"}))
    await until(lambda: [r.phase for r in engine.cache.requests()] == ["decode", "waiting"])

    seen = await get(server, "/requests")
    explained = await post(server, "/cache/explain", {"prompt": [5, 6]})

    assert (seen["num_running"], seen["num_waiting"]) == (1, 1)
    first, second = seen["data"]
    assert (first["phase"], first["waits_for"], first["priority"]) == ("decode", None, 1)
    assert (first["prompt_tokens"], first["max_tokens"]) == (65, 400)
    assert first["output_tokens"] > 0
    assert (second["waits_for"], second["user"]) == ("slot", "me")
    assert {reason["reason"] for reason in explained["reasons"]} >= {"slot", "queue"}
    running.close()
    (await waiting).close()
    await until(lambda: not engine.core.has_work)
    assert (await get(server, "/requests"))["data"] == []


# -- what can be kept ----------------------------------------------------------------------------


async def test_a_pinned_prefix_outlives_a_crowd(
    start_engine: StartEngine, engine_config: EngineConfig, open_client: OpenClient
) -> None:
    small = dataclasses.replace(engine_config, cache=CacheConfig(num_blocks=16))
    server = await open_client(build_app(await start_engine(small), HttpConfig()))
    warmed = await post(
        server, "/cache/warm", {"prompt": PROMPT, "pin": {"name": "system", "ttl_s": 600}}
    )
    assert (warmed["computed_tokens"], warmed["kept_tokens"]) == (65, 64)
    assert (warmed["pin"]["name"], warmed["pin"]["pinned_tokens"]) == ("system", 64)

    for first in range(101, 112):
        await cached_tokens(server, [first, *PROMPT[1:]])

    assert await cached_tokens(server) == 64
    [pin] = (await get(server, "/cache"))["pins"]
    assert (pin["name"], pin["pinned_tokens"]) == ("system", 64)
    assert 0 < pin["expires_in_s"] <= 600
    assert await post(server, "/cache/unpin", {"name": "system"}) == {
        "object": "cache.unpin",
        "unpinned": ["system"],
    }
    await refused(server, "/cache/unpin", {"name": "system"}, 404, code="pin_not_found")


async def test_a_pin_by_prefix_is_given_up_by_prefix(server: Client) -> None:
    await cached_tokens(server)
    made = await post(server, "/cache/pin", {"prompt": PROMPT})
    assert made["pinned_tokens"] == 64
    await refused(server, "/cache/unpin", {"prompt": PROMPT[:40]}, 404, param="prompt")

    gone = await post(server, "/cache/unpin", {"prompt": PROMPT})

    assert gone["unpinned"] == [made["name"]]
    assert (await get(server, "/cache"))["held"]["blocks"] == 0


async def test_a_pin_that_cannot_be_had_is_refused_with_numbers(server: Client) -> None:
    message = await refused(server, "/cache/pin", {"prompt": PROMPT}, 409, code="pin_refused")
    assert "Nothing of this prefix is cached" in message
    for first in range(100, 109):
        await cached_tokens(server, [first, *PROMPT[1:]])
    for first in range(100, 108):
        await post(server, "/cache/pin", {"prompt": [first, *PROMPT[1:]]})

    message = await refused(server, "/cache/pin", {"prompt": [108, *PROMPT[1:]]}, 409)

    assert "4 more blocks: 32 of the 32" in message


async def test_a_warm_prefix_is_a_hit_for_everybody_of_its_salt(server: Client) -> None:
    await post(server, "/cache/warm", {"prompt": PROMPT, "cache_salt": "a"})

    assert await cached_tokens(server, cache_salt="a") == 64
    assert await cached_tokens(server) == 0


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/cache/explain", {}, "prompt"),
        ("/cache/explain", {"prompt": ""}, "prompt"),
        ("/cache/explain", {"prompt": [10**7]}, "prompt"),
        ("/cache/explain", {"prompt": 5}, "prompt"),
        ("/cache/explain", {"prompt": "a", "messages": CHAT}, "prompt"),
        ("/cache/explain", {"messages": [{"role": "wizard"}]}, "messages[0].role"),
        ("/cache/explain", {"prompt": "a", "temperature": 0}, "temperature"),
        ("/cache/pin", {"prompt": "a", "ttl_s": 0}, "ttl_s"),
        ("/cache/pin", {"prompt": "a", "name": ""}, "name"),
        ("/cache/unpin", {}, "name"),
        ("/cache/unpin", {"name": "a", "prompt": "b"}, "name"),
        ("/cache/warm", {"prompt": [5] * 5000}, "prompt"),
        ("/cache/warm", {"prompt": "a", "pin": {"ttl": 5}}, "pin.ttl"),
        ("/cache/flush", {"all": True}, "all"),
        ("/cache/flush", {"cache_salt": 5}, "cache_salt"),
        ("/cache/flush", [], None),
    ],
)
async def test_what_cannot_be_used_is_refused_by_name(
    path: str, body: Any, param: str | None, server: Client
) -> None:
    await refused(server, path, body, 400, param=param)


# -- who may -------------------------------------------------------------------------------------

ADMIN = {"Authorization": "Bearer root"}
ONE = {"Authorization": "Bearer one"}
TWO = {"Authorization": "Bearer two"}


@pytest.fixture
async def keyed(engine: AsyncEngine, open_client: OpenClient) -> Client:
    """A server with two callers who do not share, and an admin."""
    keys = KeyConfig(api_keys=("one", "two"), admin_api_keys=("root",))
    return await open_client(build_app(engine, HttpConfig(keys=keys)))


async def call(client: Client, headers: dict[str, str], path: str, body: Any = None) -> Any:
    """Return the JSON of a call that must succeed: a GET without a body."""
    method = "GET" if body is None else "POST"
    response = await client.request(method, path, json=body, headers=headers)
    answer = await response.json()
    assert response.status == 200, answer
    return answer


@pytest.mark.parametrize(("method", "path"), KEYED_ROUTES)
async def test_every_route_needs_a_key(method: str, path: str, keyed: Client) -> None:
    assert (await keyed.request(method, path, json={})).status == 401


@pytest.mark.parametrize(("method", "path"), ADMIN_ROUTES)
async def test_admin_routes_need_an_admin_key(method: str, path: str, keyed: Client) -> None:
    response = await keyed.request(method, path, json={"prompt": PROMPT}, headers=ONE)
    assert response.status == 403
    assert (await response.json())["error"]["code"] == "admin_key_required"


async def test_a_caller_sees_its_own_part_of_the_cache(keyed: Client) -> None:
    for headers in (ONE, ONE, TWO):
        await call(keyed, headers, "/v1/completions", {"prompt": PROMPT, "max_tokens": 1})

    seen = await call(keyed, ONE, "/cache")
    tree = await call(keyed, ONE, "/cache/tree")
    explained = await call(keyed, TWO, "/cache/explain", {"prompt": [*PROMPT[:20], 200]})

    assert [(each["cache_owner"], each["hit_tokens"]) for each in seen["namespaces"]] == [
        ("key-1", 64)
    ]
    [space] = tree["namespaces"]
    assert space["cache_owner"] == "key-1"
    assert "text" not in space["runs"][0]
    assert explained["cached_tokens"] == 20
    assert explained["next_in_tree"][0]["tokens"] == PROMPT[20:28]
    for path in ("/cache?cache_owner=key-2", "/cache/tree?cache_owner=key-2"):
        assert (await keyed.get(path, headers=ONE)).status == 403
    body = {"prompt": PROMPT, "cache_owner": "key-2"}
    assert (await keyed.post("/cache/explain", json=body, headers=ONE)).status == 403
    pinned = {"prompt": PROMPT, "pin": {}}
    assert (await keyed.post("/cache/warm", json=pinned, headers=ONE)).status == 403


async def test_an_admin_reaches_every_part_of_the_cache(keyed: Client) -> None:
    await call(keyed, ONE, "/v1/completions", {"prompt": PROMPT, "max_tokens": 1})
    warm = {"prompt": PROMPT, "cache_owner": "key-2", "pin": {"name": "two"}}
    assert (await call(keyed, ADMIN, "/cache/warm", warm))["pin"]["pinned_tokens"] == 64

    seen = await call(keyed, ADMIN, "/cache")
    tree = await call(keyed, ADMIN, "/cache/tree")
    answer = await call(keyed, TWO, "/v1/completions", {"prompt": PROMPT, "max_tokens": 1})

    assert {each["cache_owner"] for each in seen["namespaces"]} == {"key-1", "key-2"}
    assert {space["cache_owner"] for space in tree["namespaces"]} == {"key-1", "key-2"}
    assert all("text" in space["runs"][0] for space in tree["namespaces"])
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 64
    assert (await call(keyed, ONE, "/cache"))["pins"] == []
    flushed = await call(keyed, ADMIN, "/cache/flush", {"cache_owner": "key-1"})
    assert (flushed["flushed_blocks"], flushed["dropped_pins"]) == (4, 0)


async def test_salts_are_kept_from_callers_who_share_a_cache(
    engine: AsyncEngine, open_client: OpenClient
) -> None:
    keys = KeyConfig(api_keys=("one",))
    server = await open_client(build_app(engine, HttpConfig(keys=keys)))
    body = {"prompt": PROMPT, "max_tokens": 1, "cache_salt": "secret"}
    await call(server, ONE, "/v1/completions", body)

    assert (await call(server, ONE, "/cache"))["namespaces"] == []
    assert (await call(server, ONE, "/cache/tree"))["namespaces"] == []
    guess = {"prompt": [*PROMPT[:20], 200], "cache_salt": "secret"}
    assert (await call(server, ONE, "/cache/explain", guess))["next_in_tree"] is None
    known = await call(server, ONE, "/cache?cache_salt=secret")
    assert [each["cached_tokens"] for each in known["namespaces"]] == [64]
