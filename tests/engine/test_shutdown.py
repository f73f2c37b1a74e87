"""Stopping, with and without grace: every open stream has one outcome."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from radixserve.engine.async_engine import AsyncEngine
from radixserve.errors import (
    RequestAbortedError,
    ShuttingDownError,
)
from radixserve.types import FinishReason
from tests.kit.engines import ask, engine_config, until
from tests.kit.streams import idle, joined, read

if TYPE_CHECKING:
    from pathlib import Path

    from tests.engine.conftest import MakeGate, StartEngine

PROMPT = list(range(10, 40))


async def test_stopping_with_grace_lets_streams_end(start_engine: StartEngine) -> None:
    engine = await start_engine(max_num_seqs=1)
    readers = [asyncio.create_task(read(engine, ask(PROMPT, max_tokens=20))) for _ in range(3)]
    await until(lambda: engine.stats().output_tokens > 2)

    await engine.stop(grace_s=600)

    for deltas in await asyncio.gather(*readers):
        assert joined(deltas)[2] is FinishReason.LENGTH
    await idle(engine)


async def test_stopping_without_grace_ends_streams_with_an_error(
    start_engine: StartEngine,
) -> None:
    engine = await start_engine(max_num_seqs=1)
    readers = [asyncio.create_task(read(engine, ask(PROMPT, max_tokens=400))) for _ in range(3)]
    await until(lambda: engine.stats().output_tokens > 2)

    await engine.stop()

    for outcome in await asyncio.gather(*readers, return_exceptions=True):
        assert isinstance(outcome, RequestAbortedError)
    await idle(engine)


async def test_stopping_while_idle_and_again_and_by_several_at_once(
    start_engine: StartEngine,
) -> None:
    engine = await start_engine()
    await read(engine, ask(PROMPT))

    await asyncio.gather(engine.stop(grace_s=600), engine.stop(), engine.stop(grace_s=600))
    await engine.stop()

    assert engine.is_alive
    assert not engine.is_ready
    await idle(engine)


async def test_a_second_stop_without_grace_cuts_the_first_ones_grace_short(
    start_engine: StartEngine,
) -> None:
    engine = await start_engine()
    reader = asyncio.create_task(read(engine, ask(PROMPT, max_tokens=1000)))
    await until(lambda: engine.stats().output_tokens > 2)
    patient = asyncio.create_task(engine.stop(grace_s=100_000))
    await asyncio.sleep(0)

    await engine.stop()
    await patient

    with pytest.raises(RequestAbortedError):
        await reader


async def test_stopping_before_starting(folder: Path) -> None:
    engine = AsyncEngine.from_config(engine_config(folder))

    await engine.stop()

    assert not engine.is_ready


async def test_nothing_is_taken_before_the_start_and_after_the_stop(
    folder: Path, start_engine: StartEngine
) -> None:
    with pytest.raises(ShuttingDownError):
        AsyncEngine.from_config(engine_config(folder)).submit(ask(PROMPT))
    engine = await start_engine()
    early = engine.submit(ask(PROMPT))
    await engine.stop()

    with pytest.raises(ShuttingDownError):
        engine.submit(ask(PROMPT))
    with pytest.raises(ShuttingDownError):
        await early.__aenter__()
    await idle(engine)


async def test_nothing_is_taken_during_the_grace(
    start_engine: StartEngine, make_gate: MakeGate
) -> None:
    engine = await start_engine()
    gate = make_gate(engine)
    reader = asyncio.create_task(read(engine, ask(PROMPT)))
    await gate.arrival()
    stopping = asyncio.create_task(engine.stop(grace_s=600))
    await until(lambda: not engine.is_ready)

    with pytest.raises(ShuttingDownError):
        engine.submit(ask(PROMPT))
    gate.open()

    await stopping
    assert joined(await reader)[2] is FinishReason.LENGTH


async def test_a_stream_that_ends_in_the_step_that_a_stop_cuts_off_has_one_outcome(
    start_engine: StartEngine,
    make_gate: MakeGate,
) -> None:
    engine = await start_engine()
    gate = make_gate(engine)

    async with engine.submit(ask(PROMPT, max_tokens=2)) as stream:
        await gate.let_in(1)
        await gate.arrival()  # the last token is being computed
        stopping = asyncio.create_task(engine.stop())
        await until(lambda: stream._error is not None)
        gate.open()
        await stopping

        # The error came first, so no delta that was computed later may say otherwise.
        assert (await anext(stream)).finish_reason is None
        with pytest.raises(RequestAbortedError):
            await anext(stream)
    await idle(engine)
