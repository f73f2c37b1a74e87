"""A client that goes away, at any moment and in either mode, leaves nothing running."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from radixserve.config import HttpConfig, SchedulerConfig
from radixserve.core.invariants import check
from radixserve.server.app import build_app
from tests.server.events import post, until

if TYPE_CHECKING:
    from radixserve.config import EngineConfig
    from radixserve.engine.async_engine import AsyncEngine
    from tests.server.conftest import Client, OpenClient, StartEngine

LONG_LEN = 2000
LONG = {"prompt": "Once", "max_tokens": LONG_LEN, "ignore_eos": True}
LONG_PROMPT = {"prompt": [5 + at % 300 for at in range(800)], "max_tokens": 8}
MODES = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture
async def engine(start_engine: StartEngine, engine_config: EngineConfig) -> AsyncEngine:
    """Return an engine of one place and small steps, so that prefill and queueing take a while."""
    scheduler = SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=16)
    return await start_engine(dataclasses.replace(engine_config, scheduler=scheduler))


@pytest.fixture
async def client(engine: AsyncEngine, open_client: OpenClient) -> Client:
    return await open_client(build_app(engine, HttpConfig()))


async def assert_idle(engine: AsyncEngine) -> None:
    def is_idle() -> bool:
        stats = engine.stats()
        return stats.num_running == stats.num_waiting == 0

    await until(is_idle)
    check(engine.core.scheduler)
    stats = engine.stats()
    assert stats.private_blocks == 0
    assert stats.protected_blocks == 0
    assert stats.free_blocks + stats.evictable_blocks == stats.num_blocks


async def give_up(call: asyncio.Task[Any]) -> None:
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


def ask(client: Client, body: dict[str, Any], *, stream: bool) -> asyncio.Task[Any]:
    return asyncio.create_task(client.post("/v1/completions", json={**body, "stream": stream}))


@MODES
async def test_before_the_first_token(stream: bool, engine: AsyncEngine, client: Client) -> None:
    call = ask(client, LONG_PROMPT, stream=stream)
    await until(lambda: engine.stats().num_running == 1)
    await give_up(call)
    await assert_idle(engine)
    assert engine.stats().output_tokens == 0


async def test_between_two_events(engine: AsyncEngine, client: Client) -> None:
    response = await client.post("/v1/completions", json={**LONG, "stream": True})
    for _ in range(2):
        await response.content.readuntil(b"\n\n")
    response.close()
    await assert_idle(engine)
    assert 0 < engine.stats().output_tokens < LONG_LEN


async def test_while_a_whole_answer_is_made(engine: AsyncEngine, client: Client) -> None:
    call = ask(client, LONG, stream=False)
    await until(lambda: engine.stats().output_tokens > 3)
    await give_up(call)
    await assert_idle(engine)
    assert engine.stats().output_tokens < LONG_LEN


@MODES
async def test_while_queued(stream: bool, engine: AsyncEngine, client: Client) -> None:
    first = ask(client, LONG, stream=True)
    await until(lambda: engine.stats().num_running == 1)
    queued = ask(client, LONG, stream=stream)
    await until(lambda: engine.stats().num_waiting == 1)
    await give_up(queued)
    await until(lambda: engine.stats().num_waiting == 0)
    assert engine.stats().num_running == 1
    (await first).close()
    await assert_idle(engine)


@MODES
async def test_a_call_of_several_prompts(stream: bool, engine: AsyncEngine, client: Client) -> None:
    call = ask(client, {**LONG, "prompt": ["a", "b", "c", "d"]}, stream=stream)
    await until(lambda: engine.stats().num_running == 1 and engine.stats().num_waiting == 3)
    if stream:
        (await call).close()
    else:
        await give_up(call)
    await assert_idle(engine)


async def test_the_next_call_is_answered_as_if_nothing_had_happened(
    engine: AsyncEngine, client: Client
) -> None:
    body = {"prompt": "the tree", "max_tokens": 8, "temperature": 0}
    before = await post(client, "/v1/completions", body)
    call = ask(client, LONG, stream=False)
    await until(lambda: engine.stats().num_running == 1)
    await give_up(call)
    after = await post(client, "/v1/completions", body)
    assert after["choices"] == before["choices"]
    await assert_idle(engine)


async def test_a_full_queue_is_refused_with_a_status_and_a_time(
    start_engine: StartEngine, engine_config: EngineConfig, open_client: OpenClient
) -> None:
    scheduler = SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=16, max_queue_len=2)
    engine = await start_engine(dataclasses.replace(engine_config, scheduler=scheduler))
    client = await open_client(build_app(engine, HttpConfig()))
    running = ask(client, LONG, stream=False)
    await until(lambda: engine.stats().num_running == 1)
    queued = [ask(client, LONG, stream=False) for _ in range(2)]
    await until(lambda: engine.stats().num_waiting == 2)
    refused = await ask(client, LONG, stream=True)
    assert (refused.status, (await refused.json())["error"]["code"]) == (429, "queue_full")
    assert int(refused.headers["Retry-After"]) >= 1
    for call in (running, *queued):
        await give_up(call)
    await assert_idle(engine)


async def test_health_answers_while_a_long_prompt_is_computed(
    engine: AsyncEngine, client: Client
) -> None:
    call = ask(client, LONG_PROMPT, stream=False)
    await until(lambda: engine.stats().num_running == 1)
    answers = 0
    while engine.stats().output_tokens == 0:
        assert (await client.get("/health")).status == 200
        answers += 1
    assert answers >= 5
    assert (await call).status == 200
