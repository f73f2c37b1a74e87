"""The field `radix`: what a caller tells about a request's future reaches the cache."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from radixserve.config import CacheConfig, HttpConfig
from radixserve.engine.request import Ending, Keep, ReleaseHint
from radixserve.errors import InvalidRequestError
from radixserve.server.app import build_app
from radixserve.server.protocol.chat import parse_chat
from radixserve.server.protocol.completions import parse_completion
from tests.server.events import post

if TYPE_CHECKING:
    from radixserve.config import EngineConfig
    from tests.server.conftest import Client, OpenClient, StartEngine


def hint_of(radix: Any, priority: int = 0) -> ReleaseHint:
    return parse_completion({"prompt": "a", "radix": radix}).radix.release_hint(priority)


@pytest.mark.parametrize(
    ("radix", "expected"),
    [
        ({}, ReleaseHint()),
        ({"cache": {}}, ReleaseHint()),
        ({"cache": {"ttl_s": 20}}, ReleaseHint(hold_s=20.0)),
        (
            {"cache": {"keep": "prefix", "prefix_len": 9}},
            ReleaseHint(keep=Keep.PREFIX, prefix_len=9),
        ),
        ({"cache": {"keep": "none"}}, ReleaseHint(keep=Keep.NONE)),
        ({"event": "end"}, ReleaseHint(is_session_end=True)),
        ({"event": {"pause": {}}}, ReleaseHint(ending=Ending.TOOL, hold_s=2.0)),
        (
            {"event": {"pause": {"tool": "search", "expect_s": 1.5}}, "cache": {"ttl_s": 1}},
            ReleaseHint(ending=Ending.TOOL, hold_s=1.5),
        ),
    ],
)
def test_hints_reach_the_engine_as_said(radix: dict[str, Any], expected: ReleaseHint) -> None:
    assert hint_of(radix) == expected


def test_a_held_path_has_its_requests_priority() -> None:
    assert hint_of({"cache": {"ttl_s": 1}}, priority=3).priority == 3


@pytest.mark.parametrize(
    ("radix", "param"),
    [
        ({"cache": {"ttl_s": -1}}, "radix.cache.ttl_s"),
        ({"cache": {"ttl_s": 1e9}}, "radix.cache.ttl_s"),
        ({"cache": {"keep": "some"}}, "radix.cache.keep"),
        ({"cache": {"pin": True}}, "radix.cache.pin"),
        ({"event": "stop"}, "radix.event"),
        ({"event": {"pause": {"expect_s": "soon"}}}, "radix.event.pause.expect_s"),
        ({"event": 3}, "radix.event"),
        ([], "radix"),
    ],
)
def test_what_is_no_hint_is_refused_by_name(radix: Any, param: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        parse_chat({"messages": [{"role": "user", "content": "a"}], "radix": radix})
    assert refused.value.param == param


def prompt(first: int) -> list[int]:
    """Four blocks of its own and a token."""
    return [first, *range(5, 68), 4]


@pytest.fixture
async def small(
    start_engine: StartEngine, engine_config: EngineConfig, open_client: OpenClient
) -> Client:
    """A server whose cache holds three such prompts."""
    config = dataclasses.replace(engine_config, cache=CacheConfig(num_blocks=16))
    return await open_client(build_app(await start_engine(config), HttpConfig()))


async def cached_tokens(client: Client, first: int, **fields: Any) -> int:
    body = {"prompt": prompt(first), "max_tokens": 1, **fields}
    answer = await post(client, "/v1/completions", body)
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


async def test_without_hints_the_least_recently_used_goes_first(small: Client) -> None:
    for first in (100, 101, 102, 103):
        await cached_tokens(small, first)
    assert await cached_tokens(small, 103) == 64
    assert await cached_tokens(small, 100) < 64


async def test_a_path_that_is_held_outlives_later_ones(small: Client) -> None:
    await cached_tokens(small, 100, radix={"cache": {"ttl_s": 600}})
    for first in (101, 102, 103):
        await cached_tokens(small, first)
    assert await cached_tokens(small, 100) == 64


async def test_a_path_waits_for_its_tool(small: Client) -> None:
    await cached_tokens(small, 100, radix={"event": {"pause": {"tool": "search", "expect_s": 600}}})
    for first in (101, 102, 103):
        await cached_tokens(small, first)
    assert await cached_tokens(small, 100) == 64


async def test_a_session_that_has_ended_goes_before_older_paths(small: Client) -> None:
    await cached_tokens(small, 100)
    await cached_tokens(small, 101)
    await cached_tokens(small, 102, radix={"event": "end"})
    await cached_tokens(small, 103)
    assert await cached_tokens(small, 100) == 64


async def test_holds_beyond_the_budget_do_not_stop_anybody(small: Client) -> None:
    for first in range(100, 112):
        await cached_tokens(small, first, radix={"cache": {"ttl_s": 600}})
    assert await cached_tokens(small, 111) == 64
