"""Every way out of a stream, at every moment, leaves nothing behind."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from radixserve.errors import (
    InvalidRequestError,
)
from radixserve.types import FinishReason
from tests.kit.engines import ask
from tests.kit.streams import idle, joined, read

if TYPE_CHECKING:
    from tests.engine.conftest import MakeGate, StartEngine

PROMPT = list(range(10, 40))
OTHER = list(range(60, 100))


async def test_leaving_before_the_first_token(
    start_engine: StartEngine, make_gate: MakeGate
) -> None:
    engine = await start_engine()
    gate = make_gate(engine)

    async with engine.submit(ask(PROMPT, max_tokens=50)):
        await gate.arrival()
    gate.open()

    await idle(engine)
    assert engine.stats().output_tokens <= 1


async def test_leaving_between_two_tokens(start_engine: StartEngine) -> None:
    engine = await start_engine()

    async with engine.submit(ask(PROMPT, max_tokens=400)) as stream:
        async for delta in stream:
            if delta.usage.completion_tokens >= 5:
                break

    await idle(engine)
    assert 5 <= engine.stats().output_tokens < 400


async def test_leaving_while_queued(start_engine: StartEngine, make_gate: MakeGate) -> None:
    engine = await start_engine(max_num_seqs=1)
    gate = make_gate(engine)
    first = asyncio.create_task(read(engine, ask(PROMPT)))
    await gate.arrival()

    async with engine.submit(ask(OTHER)):
        await gate.let_in(2)
        assert engine.stats().num_waiting == 1
    gate.open()

    assert joined(await first)[2] is FinishReason.LENGTH
    await idle(engine)
    assert engine.stats().prompt_tokens == len(PROMPT)


async def test_leaving_at_once(start_engine: StartEngine) -> None:
    engine = await start_engine()

    async with engine.submit(ask(PROMPT)):
        pass

    await idle(engine)
    assert engine.stats().prompt_tokens == 0


async def test_a_stream_that_is_never_entered_is_never_queued(start_engine: StartEngine) -> None:
    engine = await start_engine()

    stream = engine.submit(ask(PROMPT, request_id="never"))

    assert not engine.core.has_work
    assert engine.stats().num_waiting == 0
    del stream
    await read(engine, ask(PROMPT, request_id="never"))
    await idle(engine)
    assert engine.stats().prompt_tokens == len(PROMPT)


async def test_leaving_after_the_end_changes_nothing(start_engine: StartEngine) -> None:
    engine = await start_engine()

    async with engine.submit(ask(PROMPT, request_id="x")) as stream:
        deltas = [delta async for delta in stream]
        assert deltas[-1].finish_reason is FinishReason.LENGTH
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        again = await read(engine, ask(PROMPT, request_id="x"))

    assert joined(again) == joined(deltas)
    await idle(engine)


async def test_an_exception_in_the_block_gives_the_request_up(start_engine: StartEngine) -> None:
    engine = await start_engine()

    async def read_and_fail() -> None:
        async with engine.submit(ask(PROMPT, max_tokens=400)) as stream:
            async for _ in stream:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await read_and_fail()

    await idle(engine)
    assert engine.stats().output_tokens < 400


@pytest.mark.parametrize("num_tokens", [0, 3])
async def test_cancelling_the_reader_gives_the_request_up(
    num_tokens: int, start_engine: StartEngine, make_gate: MakeGate
) -> None:
    engine = await start_engine()
    gate = make_gate(engine)
    reader = asyncio.create_task(read(engine, ask(PROMPT, max_tokens=400)))
    await gate.let_in(num_tokens)
    await gate.arrival()

    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    gate.open()

    await idle(engine)
    assert engine.stats().output_tokens <= num_tokens + 1


async def test_leaving_one_stream_leaves_the_others_alone(start_engine: StartEngine) -> None:
    engine = await start_engine()
    alone = joined(await read(engine, ask(PROMPT, max_tokens=30)))

    reader = asyncio.create_task(read(engine, ask(PROMPT, max_tokens=30)))
    for _ in range(10):
        async with engine.submit(ask(PROMPT + OTHER, max_tokens=100)) as stream:
            await anext(stream)

    assert joined(await reader) == alone
    await idle(engine)


async def test_leaving_an_ended_stream_late_spares_a_new_one_of_the_same_name(
    start_engine: StartEngine,
) -> None:
    engine = await start_engine()
    async with engine.submit(ask(PROMPT, request_id="x")) as old:
        assert joined([delta async for delta in old])[2] is FinishReason.LENGTH
        new = await engine.submit(ask(OTHER, max_tokens=50, request_id="x")).__aenter__()

    assert joined([delta async for delta in new])[2] is FinishReason.LENGTH
    await new.__aexit__(None, None, None)
    await idle(engine)


async def test_a_name_is_taken_until_its_last_word_has_been_given_out(
    start_engine: StartEngine,
    make_gate: MakeGate,
) -> None:
    engine = await start_engine()
    gate = make_gate(engine)
    other = asyncio.create_task(read(engine, ask(OTHER, max_tokens=30)))
    async with engine.submit(ask(PROMPT, max_tokens=30, request_id="x")) as stream:
        await gate.let_in(2)
        await anext(stream)
        await gate.arrival()
    await gate.let_in()
    await gate.arrival()  # "x" has left the scheduler; that it ended is told after this step

    with pytest.raises(InvalidRequestError, match="in use"):
        await read(engine, ask(PROMPT, request_id="x"))
    gate.open()

    assert joined(await other)[2] is FinishReason.LENGTH
    assert joined(await read(engine, ask(PROMPT, request_id="x")))[2] is FinishReason.LENGTH
    await idle(engine)
