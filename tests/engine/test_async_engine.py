"""`AsyncEngine`: nobody waits for a forward pass, and a slow reader misses nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from blockbuster import blockbuster_ctx

from radixserve.core.invariants import check
from radixserve.types import FinishReason
from tests.kit.engines import ask, until
from tests.kit.streams import idle, joined, read

if TYPE_CHECKING:
    from radixserve.core.plan import StepPlan, StepResult
    from radixserve.errors import BackendError
    from tests.engine.conftest import MakeEngine, MakeGate, StartEngine

PROMPT = list(range(10, 40))
OTHER = list(range(60, 100))
LONG_PROMPT = [3 + 7 * i % 317 for i in range(600)]


async def test_a_stream_says_what_the_blocking_engine_says(
    start_engine: StartEngine, make_engine: MakeEngine
) -> None:
    engine = await start_engine()
    [expected] = make_engine().run([ask(PROMPT, max_tokens=20)])

    text, ids, reason = joined(await read(engine, ask(PROMPT, max_tokens=20)))

    assert (text, tuple(ids), reason) == (expected.text, expected.token_ids, FinishReason.LENGTH)
    await idle(engine)


async def test_many_streams_at_once_say_what_they_say_alone(
    start_engine: StartEngine, make_engine: MakeEngine
) -> None:
    engine = await start_engine(num_blocks=40, max_num_seqs=8)
    requests = [ask(OTHER[:n] + PROMPT, max_tokens=10 + n) for n in range(24)]
    alone = [make_engine(prefix_cache=False).run([request])[0] for request in requests]

    found = await asyncio.gather(*(read(engine, request) for request in requests))

    assert [joined(deltas)[1] for deltas in found] == [list(c.token_ids) for c in alone]
    await idle(engine)


async def test_the_event_loop_goes_on_during_a_forward_pass(start_engine: StartEngine) -> None:
    engine = await start_engine(num_blocks=80, max_num_batched_tokens=1024)
    ticks, at_schedule, during = 0, 0, list[tuple[int, int]]()
    schedule, land = engine.core.schedule, engine.core.land

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    def noting_schedule() -> StepPlan:
        nonlocal at_schedule
        at_schedule = ticks
        return schedule()

    def noting_land(plan: StepPlan, result: StepResult | BackendError) -> Any:
        during.append((plan.num_tokens, ticks - at_schedule))
        return land(plan, result)

    engine.core.schedule = noting_schedule  # type: ignore[method-assign]
    engine.core.land = noting_land  # type: ignore[method-assign]
    ticker = asyncio.create_task(tick())
    await read(engine, ask(LONG_PROMPT, max_tokens=4))
    ticker.cancel()
    await asyncio.gather(ticker, return_exceptions=True)

    num_tokens, num_ticks = max(during)
    assert num_tokens == len(LONG_PROMPT)
    assert num_ticks > 0


async def test_a_forward_pass_that_hangs_holds_up_neither_timers_nor_new_streams(
    start_engine: StartEngine,
    make_gate: MakeGate,
) -> None:
    engine = await start_engine()
    gate = make_gate(engine)
    first = asyncio.create_task(read(engine, ask(PROMPT)))
    await gate.arrival()

    for _ in range(5):
        await asyncio.sleep(0.001)
    second = asyncio.create_task(read(engine, ask(OTHER)))
    await until(lambda: len(engine._streams) == 2)
    assert gate.num_waiting == 1

    gate.open()
    for deltas in await asyncio.gather(first, second):
        assert joined(deltas)[2] is FinishReason.LENGTH
    await idle(engine)


async def test_nothing_on_the_event_loop_blocks(start_engine: StartEngine) -> None:
    engine = await start_engine(num_blocks=30, max_num_seqs=4)
    requests = [ask(OTHER[:n] + PROMPT, stop=("zq",)) for n in range(12)]
    await read(engine, requests[0])  # the worker thread is started, once, by the first step

    with blockbuster_ctx():
        found = await asyncio.gather(*(read(engine, request) for request in requests))
        await engine.stop(grace_s=1.0)

    assert len(found) == len(requests)


async def test_a_slow_reader_gets_merged_deltas_and_the_same_text(
    start_engine: StartEngine,
    make_gate: MakeGate,
) -> None:
    engine = await start_engine()
    fast = await read(engine, ask(PROMPT, max_tokens=12))
    gate = make_gate(engine)

    async with engine.submit(ask(PROMPT, max_tokens=12)) as stream:
        await gate.let_in(5)
        first = await anext(stream)
        gate.open()
        await until(lambda: not engine._streams)
        rest = [delta async for delta in stream]

    assert len(first.token_ids) > 1
    assert len(rest) == 1
    assert joined([first, *rest]) == joined(fast)
    assert rest[0].usage.completion_tokens == 12
    await idle(engine)


async def test_a_stop_string_ends_the_request_and_gives_its_blocks_back(
    start_engine: StartEngine,
) -> None:
    engine = await start_engine()
    full, _, _ = joined(await read(engine, ask(PROMPT, max_tokens=60)))
    stop = full[len(full) // 2 :][:3]

    for _ in range(3):
        text, ids, reason = joined(
            await read(engine, ask(PROMPT, max_tokens=60, stop=(stop,), request_id="same"))
        )
        assert text == full[: full.index(stop)]
        assert reason is FinishReason.STOP
        assert len(ids) < 60
        await until(lambda: not engine.core.has_work)
    await idle(engine)


@pytest.mark.usefixtures("eager_admission")
async def test_invariants_hold_between_all_steps(start_engine: StartEngine) -> None:
    engine = await start_engine(num_blocks=60, block_size=4, max_num_seqs=6)
    land, num_checks = engine.core.land, 0

    def checked_land(plan: StepPlan, result: StepResult | BackendError) -> Any:
        nonlocal num_checks
        check(engine.core.scheduler)
        events = land(plan, result)
        check(engine.core.scheduler)
        num_checks += 1
        return events

    engine.core.land = checked_land  # type: ignore[method-assign]
    await asyncio.gather(*(read(engine, ask(OTHER[:n] + PROMPT, max_tokens=40)) for n in range(9)))

    assert num_checks > 40
    assert engine.stats().preemptions > 0
    await idle(engine)
