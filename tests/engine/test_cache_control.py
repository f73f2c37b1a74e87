"""The cache of a running engine: looked at and changed between steps, while streams go on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from radixserve.core.invariants import check
from radixserve.errors import EngineDeadError, InvalidRequestError, ShuttingDownError
from tests.kit.engines import ask, until
from tests.kit.streams import idle, joined, read

if TYPE_CHECKING:
    from radixserve.core.plan import StepPlan, StepResult
    from radixserve.engine.async_engine import AsyncEngine
    from tests.engine.conftest import MakeEngine, MakeGate, StartEngine

PROMPT = list(range(10, 60))
OTHER = list(range(100, 150))


async def cached_tokens(engine: AsyncEngine, prompt: list[int], salt: str = "") -> int:
    deltas = await read(engine, ask(prompt, max_tokens=1, cache_salt=salt))
    return deltas[-1].usage.cached_tokens


async def test_b9_a_flush_during_a_stream_takes_nothing_from_it(
    start_engine: StartEngine, make_engine: MakeEngine
) -> None:
    engine = await start_engine()
    [expected] = make_engine().run([ask(PROMPT, max_tokens=200)])
    await read(engine, ask(OTHER))
    ids: list[int] = []

    async with engine.submit(ask(PROMPT, max_tokens=200)) as stream:
        async for delta in stream:
            ids.extend(delta.token_ids)
            if len(ids) == 40:
                during = await engine.cache.flush()
                check(engine.core.scheduler)

    assert tuple(ids) == expected.token_ids
    assert during.kept_blocks >= (len(PROMPT) + 40) // 16 - 1
    assert during.flushed_blocks >= len(OTHER) // 16
    assert joined(await read(engine, ask(PROMPT, max_tokens=200)))[1] == ids
    await idle(engine)


async def test_b9_a_flush_right_after_an_answer_never_fails(start_engine: StartEngine) -> None:
    engine = await start_engine(num_blocks=64)
    for _ in range(100):
        deltas = await read(engine, ask(PROMPT, max_tokens=2))
        done = await engine.cache.flush()
        assert deltas[-1].usage.cached_tokens == 0
        assert (done.flushed_blocks, done.kept_blocks) == (len(PROMPT) // 16, 0)
    await idle(engine)


async def test_a_flush_in_the_middle_of_a_forward_pass_waits_for_it(
    start_engine: StartEngine, make_gate: MakeGate
) -> None:
    engine = await start_engine()
    await read(engine, ask(OTHER))
    gate = make_gate(engine)
    async with engine.submit(ask(PROMPT, max_tokens=3)) as stream:
        await gate.arrival()
        flush = asyncio.create_task(engine.cache.flush())
        await asyncio.sleep(0)
        assert not flush.done()
        assert engine.stats().evictable_blocks == len(OTHER) // 16

        gate.open()
        assert (await flush).flushed_blocks == len(OTHER) // 16
        assert len([delta async for delta in stream]) >= 1
    await idle(engine)


async def test_a_flush_of_one_salt_leaves_the_others(start_engine: StartEngine) -> None:
    engine = await start_engine()
    for salt in ("", "a", "b"):
        await cached_tokens(engine, PROMPT, salt)

    done = await engine.cache.flush(lambda namespace: namespace.salt == "a")

    assert done.flushed_blocks == len(PROMPT) // 16
    assert await cached_tokens(engine, PROMPT, "a") == 0
    assert await cached_tokens(engine, PROMPT, "b") > 0
    assert await cached_tokens(engine, PROMPT) > 0


async def test_a_pin_keeps_its_prefix_through_a_crowd_of_others(start_engine: StartEngine) -> None:
    engine = await start_engine(num_blocks=16)
    await read(engine, ask(PROMPT))
    answer = await engine.cache.pin(PROMPT, engine.cache.namespace(), ttl_s=600, name="system")
    assert (answer.is_pinned, answer.cached_len) == (True, 48)

    for first in range(150, 160):
        await read(engine, ask([first, *OTHER]))

    assert await cached_tokens(engine, PROMPT) >= 48
    assert await engine.cache.unpin("system")
    assert not await engine.cache.unpin("system")


async def test_too_much_is_not_pinned_and_says_how_much_it_was(start_engine: StartEngine) -> None:
    engine = await start_engine(num_blocks=16)
    namespace = engine.cache.namespace()
    long = [*range(10, 110)]
    await read(engine, ask(long, max_tokens=1))
    await read(engine, ask(OTHER[:40], max_tokens=1))
    assert (await engine.cache.pin(long, namespace, ttl_s=600)).is_pinned

    fits = await engine.cache.pin(OTHER[:40], namespace, ttl_s=600)
    await read(engine, ask([3, *OTHER[:40]], max_tokens=1))
    refused = await engine.cache.pin([3, *OTHER[:40]], namespace, ttl_s=600)

    assert (fits.is_pinned, fits.cost_blocks, fits.held_blocks) == (True, 2, 8)
    assert not refused.is_pinned
    assert (refused.cost_blocks, refused.held_blocks, refused.max_held_blocks) == (2, 8, 8)


async def test_a_pin_of_tokens_that_no_model_has_is_refused(start_engine: StartEngine) -> None:
    engine = await start_engine()
    with pytest.raises(InvalidRequestError):
        await engine.cache.pin([10**6], engine.cache.namespace(), ttl_s=1)
    with pytest.raises(InvalidRequestError):
        engine.cache.explain([], engine.cache.namespace())


async def test_the_cache_can_be_changed_while_the_engine_has_nothing_to_do(
    start_engine: StartEngine,
) -> None:
    engine = await start_engine()
    await read(engine, ask(PROMPT))
    await idle(engine)

    answers = await asyncio.gather(
        engine.cache.pin(PROMPT, engine.cache.namespace(), ttl_s=5), engine.cache.flush()
    )

    assert answers[0].is_pinned
    assert answers[1].dropped_pins == 1
    await idle(engine)


async def test_what_is_asked_of_a_stopped_engine_is_refused(start_engine: StartEngine) -> None:
    engine = await start_engine()
    await engine.stop()
    with pytest.raises(ShuttingDownError):
        await engine.cache.flush()


async def test_nobody_waits_for_an_engine_that_dies(
    start_engine: StartEngine, make_gate: MakeGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await start_engine()
    gate = make_gate(engine)

    def fail(plan: StepPlan, result: StepResult) -> None:
        raise RuntimeError("landed badly")

    stream = asyncio.create_task(read(engine, ask(PROMPT)))
    await gate.arrival()
    flush = asyncio.create_task(engine.cache.flush())
    await asyncio.sleep(0)
    monkeypatch.setattr(engine.core, "land", fail)
    gate.open()
    with pytest.raises(EngineDeadError):
        await stream
    with pytest.raises(EngineDeadError):
        await flush
    with pytest.raises(EngineDeadError):
        await engine.cache.flush()


async def test_a_caller_who_has_gone_does_not_stop_what_was_asked(
    start_engine: StartEngine, make_gate: MakeGate
) -> None:
    engine = await start_engine()
    await read(engine, ask(PROMPT))
    gate = make_gate(engine)
    async with engine.submit(ask(OTHER, max_tokens=1)) as stream:
        await gate.arrival()
        flush = asyncio.create_task(engine.cache.flush())
        await asyncio.sleep(0)
        flush.cancel()
        with pytest.raises(asyncio.CancelledError):
            await flush
        gate.open()
        async for _ in stream:
            pass
    await until(lambda: not engine.core.has_work)
    assert engine.cache.view().flushed_blocks >= len(PROMPT) // 16
    assert await cached_tokens(engine, PROMPT) == 0


async def test_live_requests_are_seen_during_a_forward_pass(
    start_engine: StartEngine, make_gate: MakeGate
) -> None:
    engine = await start_engine(max_num_seqs=1)
    gate = make_gate(engine)
    async with (
        engine.submit(ask(PROMPT, request_id="a", priority=2)) as first,
        engine.submit(ask(OTHER, request_id="b")) as second,
    ):
        await gate.arrival()
        found = {str(view.req_id): view for view in engine.cache.requests()}
        assert set(found) == {"a", "b"}
        assert found["a"].phase == "prefill"
        assert found["b"].waits_for is not None
        assert (engine.cache.age_s(found["a"].req_id) or 0) > 0
        gate.open()
        for stream in (first, second):
            async for _ in stream:
                pass
    await idle(engine)
    assert engine.cache.requests() == []
