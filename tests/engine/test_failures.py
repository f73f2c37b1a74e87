"""Steps that fail, bugs, and requests that are refused: who is told, and who is not."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

import pytest
import torch

from radixserve.errors import (
    BackendError,
    EngineDeadError,
    InvalidRequestError,
    PromptTooLongError,
    QueueFullError,
)
from radixserve.types import FinishReason, SamplingParams
from tests.kit.engines import ask, until
from tests.kit.streams import idle, joined, read

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve.core.plan import StepPlan, StepResult
    from radixserve.errors import RadixServeError
    from tests.engine.conftest import MakeEngine, MakeGate, StartEngine

PROMPT = list(range(10, 40))
OTHER = list(range(60, 100))
LONG_PROMPT = [3 + 7 * i % 317 for i in range(600)]


def fail_once(core: Any, error: Exception, *, when: Callable[[StepPlan], bool]) -> list[StepPlan]:
    """Let the first forward pass that `when` picks raise; return the list that it is noted in."""
    execute, failed = core._runner.execute, list[Any]()

    def failing(plan: StepPlan) -> StepResult:
        if not failed and when(plan):
            failed.append(plan)
            raise error
        result: StepResult = execute(plan)
        return result

    core._runner.execute = failing
    return failed


async def test_a_failed_step_fails_its_own_requests_only(
    start_engine: StartEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await start_engine(max_num_seqs=2, schedule_policy="fcfs")
    expected = joined(await read(engine, ask(OTHER)))
    failed = fail_once(
        engine.core, BackendError("the device is gone"), when=lambda plan: len(plan.reqs) == 2
    )

    outcomes = await asyncio.gather(
        *(read(engine, ask(prompt)) for prompt in (PROMPT, PROMPT[::-1], OTHER, OTHER)),
        return_exceptions=True,
    )

    assert len(failed) == 1
    assert [type(outcome) for outcome in outcomes] == [BackendError, BackendError, list, list]
    assert "the device is gone" in str(outcomes[0])
    for outcome in outcomes[2:]:
        assert isinstance(outcome, list)
        assert joined(outcome) == expected
    assert engine.is_ready
    assert "failed" in caplog.text
    await idle(engine)


async def test_a_prompt_that_failed_can_be_asked_again(
    start_engine: StartEngine, make_engine: MakeEngine
) -> None:
    engine = await start_engine(max_num_batched_tokens=64, max_num_seqs=4)
    [expected] = make_engine().run([ask(LONG_PROMPT)])
    for at in (1, 3, 10, 12):
        steps = engine.stats().steps
        fail_once(
            engine.core,
            BackendError("once"),
            when=lambda plan, step=steps + at: plan.step >= step,  # type: ignore[misc]
        )
        salt = str(at)
        with pytest.raises(BackendError, match="once"):
            await read(engine, ask(LONG_PROMPT, cache_salt=salt))

        again = joined(await read(engine, ask(LONG_PROMPT, cache_salt=salt)))

        assert tuple(again[1]) == expected.token_ids
    await idle(engine)


async def test_a_row_that_fails_alone_fails_one_request(start_engine: StartEngine) -> None:
    engine = await start_engine()
    masked = SamplingParams(
        temperature=0.0,
        max_tokens=4,
        logit_bias=tuple((token, float("-inf")) for token in range(engine.info.vocab_size)),
    )

    outcomes = await asyncio.gather(
        read(engine, ask(PROMPT)), read(engine, ask(OTHER, params=masked)), return_exceptions=True
    )

    assert isinstance(outcomes[0], list)
    assert isinstance(outcomes[1], BackendError)
    await idle(engine)


@pytest.mark.parametrize("place", ["schedule", "update"])
async def test_an_unexpected_error_kills_the_engine_and_tells_everybody(
    place: str, start_engine: StartEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await start_engine(max_num_seqs=1)
    early = engine.submit(ask(PROMPT))
    readers = [asyncio.create_task(read(engine, ask(PROMPT, max_tokens=400))) for _ in range(3)]
    await until(lambda: engine.stats().output_tokens > 2)

    def broken(*_: object) -> None:
        raise LookupError("a bug")

    setattr(engine.core.scheduler, place, broken)
    outcomes = await asyncio.gather(*readers, return_exceptions=True)

    assert [type(outcome) for outcome in outcomes] == [EngineDeadError] * 3
    assert not engine.is_alive
    assert not engine.is_ready
    with pytest.raises(EngineDeadError):
        engine.submit(ask(PROMPT))
    with pytest.raises(EngineDeadError):
        await early.__aenter__()
    assert any(record.levelno == logging.ERROR for record in caplog.records)
    await engine.stop(grace_s=100_000)
    assert "dead" in repr(engine)


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("a bug"), torch.AcceleratorError("the device is lost")]
)
async def test_what_is_no_steps_failure_kills_the_engine(
    error: Exception, start_engine: StartEngine
) -> None:
    engine = await start_engine()
    fail_once(engine.core, error, when=lambda plan: True)

    with pytest.raises(EngineDeadError):
        await read(engine, ask(PROMPT))

    assert not engine.is_alive


async def test_a_full_queue_refuses_and_recovers(
    start_engine: StartEngine, make_gate: MakeGate
) -> None:
    engine = await start_engine(max_num_seqs=1, max_queue_len=2)
    gate = make_gate(engine)
    readers = [asyncio.create_task(read(engine, ask(PROMPT)))]
    await gate.arrival()
    readers += [asyncio.create_task(read(engine, ask(OTHER))) for _ in range(2)]
    await until(lambda: len(engine._streams) == 3)

    for _ in range(2):
        with pytest.raises(QueueFullError) as refused:
            await read(engine, ask(PROMPT))
    assert refused.value.retry_after_s >= 1
    assert len(engine._streams) == 3
    gate.open()

    for deltas in await asyncio.gather(*readers):
        assert joined(deltas)[2] is FinishReason.LENGTH
    assert joined(await read(engine, ask(PROMPT)))[2] is FinishReason.LENGTH
    await idle(engine)


async def test_a_place_in_the_queue_is_free_again_once_its_request_was_given_up(
    start_engine: StartEngine,
    make_gate: MakeGate,
) -> None:
    engine = await start_engine(max_num_seqs=1, max_queue_len=1)
    gate = make_gate(engine)
    first = asyncio.create_task(read(engine, ask(PROMPT, max_tokens=30)))
    await gate.arrival()
    async with engine.submit(ask(OTHER)):
        with pytest.raises(QueueFullError):
            await read(engine, ask(OTHER))
    await gate.let_in(2)

    second = asyncio.create_task(read(engine, ask(OTHER)))
    gate.open()

    for deltas in await asyncio.gather(first, second):
        assert joined(deltas)[2] is FinishReason.LENGTH
    await idle(engine)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"prompt_ids": []}, InvalidRequestError),
        ({"prompt_ids": [-1]}, InvalidRequestError),
        ({"prompt_ids": [10_000]}, InvalidRequestError),
        ({"prompt_ids": [5] * 5000}, PromptTooLongError),
        ({"prompt_ids": [5] * 500, "max_tokens": 1 << 30}, PromptTooLongError),
        ({"prompt_ids": [5], "stop": ("",)}, InvalidRequestError),
        ({"prompt_ids": [5], "stop": ("a", "")}, InvalidRequestError),
    ],
)
async def test_what_can_never_be_served_is_refused_and_harms_nobody(
    fields: dict[str, Any], error: type[RadixServeError], start_engine: StartEngine
) -> None:
    engine = await start_engine()
    reader = asyncio.create_task(read(engine, ask(PROMPT, max_tokens=30)))

    with pytest.raises(error):
        await read(engine, ask(**fields))

    assert joined(await reader)[2] is FinishReason.LENGTH
    assert engine.is_ready
    await idle(engine)


async def test_a_name_in_use_is_refused_and_its_owner_is_left_alone(
    start_engine: StartEngine,
) -> None:
    engine = await start_engine()
    async with engine.submit(ask(PROMPT, max_tokens=30, request_id="a")) as stream:
        waiting = engine.submit(ask(PROMPT, request_id="b"))
        async with engine.submit(ask(PROMPT, request_id="b")):
            for name in ("a", "b"):
                with pytest.raises(InvalidRequestError, match="in use"):
                    engine.submit(ask(PROMPT, request_id=name))
            with pytest.raises(InvalidRequestError, match="in use"):
                await waiting.__aenter__()
        assert joined([delta async for delta in stream])[2] is FinishReason.LENGTH
    await idle(engine)


async def test_a_callers_name_never_meets_one_that_the_engine_makes(
    start_engine: StartEngine,
) -> None:
    engine = await start_engine()
    async with engine.submit(ask(PROMPT)) as stream:
        own_name = stream.request_id
    async with contextlib.AsyncExitStack() as stack:
        for n in (*range(2, 12), *range(22, 32)):
            name = own_name.replace("1", str(n))
            await stack.enter_async_context(
                engine.submit(ask(PROMPT, max_tokens=200, request_id=name))
            )
        assert joined(await read(engine, ask(OTHER)))[2] is FinishReason.LENGTH
    await idle(engine)
