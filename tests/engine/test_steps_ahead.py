"""An engine that runs a step ahead gives the tokens of one that does not, whatever happens."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from radixserve.errors import BackendError, RequestAbortedError
from radixserve.runtime.launch import DeviceLauncher
from radixserve.runtime.model_runner import ModelRunner
from radixserve.runtime.tree_order import TreeOrderedLauncher
from radixserve.types import FinishReason, SamplingParams
from tests.kit.engines import ask, assert_idle, run_ahead
from tests.kit.late_launcher import LateLauncher
from tests.kit.streams import idle, joined, read

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from radixserve.core.plan import StepPlan, StepResult
    from radixserve.engine.async_engine import AsyncEngine
    from radixserve.engine.request import GenerateRequest
    from radixserve.engine.sync_engine import Completion, Engine
    from radixserve.runtime.launch import StepLauncher
    from radixserve.runtime.model_runner import StepUnderWay
    from tests.engine.conftest import MakeEngine, StartEngine

PROMPT = list(range(10, 40))
GREEDY = SamplingParams(temperature=0.0, max_tokens=24)
SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, max_tokens=24)
KINDS = {"greedy": GREEDY, "sampled": SAMPLED}


LAUNCHERS: dict[str, Callable[[Any], StepLauncher]] = {
    "late": LateLauncher,
    "device": DeviceLauncher,
    "tree order": lambda runner: TreeOrderedLauncher(DeviceLauncher(runner)),
}


@pytest.fixture(params=LAUNCHERS)
def make_ahead(request: pytest.FixtureRequest, make_engine: MakeEngine) -> MakeEngine:
    """Return what makes engines that run a step ahead."""

    def make(**settings: Any) -> Engine:
        engine = make_engine(**settings)
        run_ahead(engine.core, LAUNCHERS[request.param])
        return engine

    return make


def make_requests(kind: SamplingParams, number: int = 9) -> list[GenerateRequest]:
    """Return requests of different lengths and limits, with seeds of their own, some alike."""
    dice = Random(7)
    trunk = [dice.randrange(3, 320) for _ in range(9)]
    requests = []
    for place in range(number):
        own = [dice.randrange(3, 320) for _ in range(dice.randint(1, 12))]
        prompt = trunk if place % 3 == 0 else own
        params = replace(kind, seed=place, max_tokens=dice.randint(1, 30))
        requests.append(ask(prompt, params=params))
    return requests


def assert_same(found: Sequence[Completion], expected: Sequence[Completion]) -> None:
    assert [(c.token_ids, c.text, c.finish_reason) for c in found] == [
        (c.token_ids, c.text, c.finish_reason) for c in expected
    ]


def one_by_one(make_engine: MakeEngine, requests: Sequence[GenerateRequest]) -> list[Completion]:
    """Return what each gives alone, nothing cached, nothing ahead."""
    engine = make_engine(prefix_cache=False)
    completions = [engine.run([request])[0] for request in requests]
    assert engine.stats().steps_ahead == 0
    return completions


# -- the same tokens ---------------------------------------------------------------------------


def test_every_decode_is_queued_ahead_the_first_behind_its_prompt(
    make_ahead: MakeEngine, make_engine: MakeEngine
) -> None:
    engine = make_ahead()

    [completion] = engine.run([ask(PROMPT, max_tokens=20)])

    assert_same([completion], one_by_one(make_engine, [ask(PROMPT, max_tokens=20)]))
    assert (engine.stats().steps, engine.stats().steps_ahead) == (20, 19)
    assert_idle(engine.core)


def test_a_step_is_launched_before_the_one_before_is_answered(make_ahead: MakeEngine) -> None:
    engine = make_ahead()
    done: list[tuple[str, int]] = []
    launcher, update = engine.core._pipeline._launcher, engine.core.scheduler.update
    launch = launcher.launch

    def note_launch(plan: StepPlan) -> Any:
        done.append(("launch", plan.step))
        return launch(plan)

    def note_update(plan: StepPlan, result: StepResult) -> Any:
        done.append(("land", plan.step))
        return update(plan, result)

    launcher.launch = note_launch  # type: ignore[method-assign]
    engine.core.scheduler.update = note_update  # type: ignore[method-assign]
    engine.run([ask(PROMPT, max_tokens=5)])

    assert done == [
        ("launch", 1),
        ("launch", 2),
        ("land", 1),
        ("launch", 3),
        ("land", 2),
        ("launch", 4),
        ("land", 3),
        ("launch", 5),
        ("land", 4),
        ("land", 5),
    ]


@pytest.mark.parametrize("seats", [3, 64])
@pytest.mark.parametrize("name", KINDS)
def test_a_batch_has_the_tokens_of_undisturbed_runs(
    name: str, seats: int, make_ahead: MakeEngine, make_engine: MakeEngine
) -> None:
    engine = make_ahead(max_num_seqs=seats)
    requests = make_requests(KINDS[name])

    completions = engine.run(requests)

    assert_same(completions, one_by_one(make_engine, requests))
    assert engine.stats().steps_ahead > 5
    assert_idle(engine.core)


@pytest.mark.parametrize("name", KINDS)
def test_stop_tokens_end_outputs_where_they_would(
    name: str, make_ahead: MakeEngine, make_engine: MakeEngine
) -> None:
    plain = make_requests(replace(KINDS[name], max_tokens=24))
    stops = [c.token_ids[len(c.token_ids) // 2] for c in one_by_one(make_engine, plain)]
    requests = [
        replace(request, params=replace(request.params, stop_token_ids=frozenset({stop})))
        for request, stop in zip(plain, stops, strict=True)
    ]
    engine = make_ahead()

    completions = engine.run(requests)

    assert_same(completions, one_by_one(make_engine, requests))
    assert {c.finish_reason for c in completions} == {FinishReason.STOP}
    assert engine.stats().steps_ahead > 0
    assert_idle(engine.core)


@pytest.mark.parametrize("name", KINDS)
def test_stop_strings_end_outputs_where_they_would(
    name: str, make_ahead: MakeEngine, make_engine: MakeEngine
) -> None:
    plain = make_requests(KINDS[name])
    texts = [c.text for c in one_by_one(make_engine, plain)]
    requests = [
        replace(request, stop=(text[len(text) // 2 :][:2],) if len(text) > 2 else ())
        for request, text in zip(plain, texts, strict=True)
    ]
    engine = make_ahead()

    completions = engine.run(requests)

    assert_same(completions, one_by_one(make_engine, requests))
    assert FinishReason.STOP in {c.finish_reason for c in completions}
    assert engine.stats().steps_ahead > 0
    assert_idle(engine.core)


@pytest.mark.parametrize("name", KINDS)
def test_several_on_one_prompt_share_it_and_differ_as_they_would(
    name: str, make_ahead: MakeEngine, make_engine: MakeEngine
) -> None:
    engine = make_ahead(block_size=4)
    requests = [ask(PROMPT, params=replace(KINDS[name], seed=seed)) for seed in range(5)]

    completions = engine.run(requests)

    assert_same(completions, one_by_one(make_engine, requests))
    assert engine.stats().cached_tokens == 4 * (len(PROMPT) - 1)
    assert engine.stats().steps_ahead > 5
    assert_idle(engine.core)


def test_a_child_of_a_running_request_goes_on_from_its_last_token(
    make_ahead: MakeEngine, make_engine: MakeEngine
) -> None:
    engine = make_ahead(block_size=4)
    parent = engine.add(ask(PROMPT, max_tokens=24))
    tokens: dict[str, list[int]] = {parent: []}
    while len(tokens[parent]) < 9:
        collect(engine, tokens)
    assert engine.core.scheduler.in_flight is not None
    prompt = PROMPT + tokens[parent]

    child = engine.add(ask(prompt, params=SAMPLED, fork_of=parent))
    tokens[child] = []
    while engine.has_work:
        collect(engine, tokens)

    requests = [ask(PROMPT, max_tokens=24), ask(prompt, params=SAMPLED)]
    # No seed was asked for: the engine's own one, drawn second, is not the same alone.
    [expected] = one_by_one(make_engine, requests[:1])
    assert tokens[parent] == list(expected.token_ids)
    assert len(tokens[child]) == SAMPLED.max_tokens
    assert engine.stats().cached_tokens == len(prompt) - 1
    assert_idle(engine.core)


def collect(engine: Engine, tokens: dict[str, list[int]]) -> None:
    for event in engine.step():
        tokens[event.req_id].extend(event.delta.token_ids)


@pytest.mark.usefixtures("eager_admission")
@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("name", KINDS)
def test_a_pool_too_small_for_all_changes_no_token(
    name: str, mode: str, make_ahead: MakeEngine, make_engine: MakeEngine
) -> None:
    engine = make_ahead(num_blocks=24, block_size=4, preemption_mode=mode, max_num_seqs=8)
    requests = [
        replace(request, params=replace(request.params, max_tokens=50))
        for request in make_requests(KINDS[name])
    ]

    completions = engine.run(requests)

    assert_same(completions, one_by_one(make_engine, requests))
    assert engine.stats().preemptions > 0
    assert engine.stats().steps_ahead > 5
    assert_idle(engine.core)


def test_requests_that_the_host_must_follow_run_beside_plain_ones(
    make_ahead: MakeEngine, make_engine: MakeEngine
) -> None:
    engine = make_ahead()
    penalised = replace(SAMPLED, seed=3, repetition_penalty=1.3, max_tokens=8)
    requests = [ask(PROMPT, params=penalised), *make_requests(SAMPLED)]

    completions = engine.run(requests)

    assert_same(completions, one_by_one(make_engine, requests))
    assert engine.stats().steps_ahead > 0
    assert_idle(engine.core)


# -- ends --------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", range(1, 9))
def test_an_abort_at_any_moment_harms_nobody_else(
    at: int, make_ahead: MakeEngine, make_engine: MakeEngine
) -> None:
    engine = make_ahead()
    kept, given_up = (engine.add(ask(PROMPT[n:], max_tokens=16)) for n in (0, 5))
    tokens: dict[str, list[int]] = {kept: [], given_up: []}
    for _ in range(at):
        collect(engine, tokens)

    engine.abort(given_up)
    while engine.has_work:
        collect(engine, tokens)

    whole, part = one_by_one(make_engine, [ask(PROMPT[n:], max_tokens=16) for n in (0, 5)])
    assert tokens[kept] == list(whole.token_ids)
    assert tokens[given_up] == list(part.token_ids)[: len(tokens[given_up])]
    assert at <= len(tokens[given_up]) <= at + 1
    assert_idle(engine.core)


def failing(engine: Engine, step: int, error: BaseException) -> None:
    """Let the forward pass `step` steps from now fail."""
    runner, countdown = engine.core._runner, step
    assert isinstance(runner, ModelRunner)
    begin = runner.begin

    def begin_or_fail(plan: StepPlan, before: StepUnderWay | None = None) -> StepUnderWay:
        nonlocal countdown
        countdown -= 1
        if countdown == 0:
            raise error
        return begin(plan, before)

    runner.begin = begin_or_fail  # type: ignore[method-assign]


@pytest.mark.parametrize("at", [1, 2, 3, 6])
def test_a_failed_step_ends_its_requests_and_the_step_ahead_nobody_twice(
    at: int, make_ahead: MakeEngine, make_engine: MakeEngine
) -> None:
    engine = make_ahead()
    failing(engine, at, BackendError("the device is gone"))
    names = [engine.add(ask(PROMPT[n:], max_tokens=16)) for n in (0, 5)]

    events = []
    while engine.has_work:
        events += engine.step()

    ends = [event for event in events if event.delta.finish_reason is not None]
    assert sorted(event.req_id for event in ends) == sorted(names)
    assert {event.error for event in ends} == {"the device is gone"}
    assert_idle(engine.core)
    assert_same(engine.run(make_requests(GREEDY)), one_by_one(make_engine, make_requests(GREEDY)))


@pytest.mark.parametrize("at", [1, 2, 3, 6])
@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_an_interrupt_gives_up_what_is_in_flight(
    error: type[BaseException], at: int, make_ahead: MakeEngine, make_engine: MakeEngine
) -> None:
    engine = make_ahead()
    failing(engine, at, error())

    with pytest.raises(error):
        engine.run(make_requests(GREEDY, number=3))

    assert_idle(engine.core)
    assert_same(engine.run(make_requests(GREEDY)), one_by_one(make_engine, make_requests(GREEDY)))


# -- asyncio -----------------------------------------------------------------------------------


@pytest.fixture(params=["late", "device"])
def start_ahead(request: pytest.FixtureRequest, start_engine: StartEngine) -> StartEngine:
    """Return what starts engines that run a step ahead."""

    async def start(**settings: Any) -> AsyncEngine:
        engine = await start_engine(**settings)
        run_ahead(engine.core, LAUNCHERS[request.param])
        return engine

    return start


async def test_streams_have_the_tokens_of_undisturbed_runs(
    start_ahead: StartEngine, make_engine: MakeEngine
) -> None:
    engine = await start_ahead(max_num_seqs=4)
    requests = make_requests(SAMPLED)

    streams = await asyncio.gather(*(read(engine, request) for request in requests))

    expected = one_by_one(make_engine, requests)
    for deltas, alone in zip(streams, expected, strict=True):
        assert joined(deltas) == (alone.text, list(alone.token_ids), alone.finish_reason)
    assert engine.stats().steps_ahead > 5
    await idle(engine)


async def test_leaving_streams_while_a_step_is_ahead(start_ahead: StartEngine) -> None:
    engine = await start_ahead()

    async def leave_after(number: int) -> None:
        async with engine.submit(ask(PROMPT[number:], max_tokens=400)) as stream:
            async for delta in stream:
                if delta.usage.completion_tokens >= number:
                    return

    await asyncio.gather(*(leave_after(number) for number in (1, 2, 5, 11)))

    await idle(engine)
    assert engine.stats().steps_ahead > 0
    assert engine.stats().output_tokens < 400


@pytest.mark.parametrize("grace_s", [0.0, 600.0])
async def test_stopping_lands_the_step_ahead(grace_s: float, start_ahead: StartEngine) -> None:
    engine = await start_ahead()
    readers = [asyncio.create_task(read(engine, ask(PROMPT[n:], max_tokens=60))) for n in range(3)]
    await until_ahead(lambda: engine.stats().steps_ahead > 3)

    await engine.stop(grace_s=grace_s)

    for outcome in await asyncio.gather(*readers, return_exceptions=True):
        if grace_s:
            assert joined(outcome)[2] is FinishReason.LENGTH  # type: ignore[arg-type]
        else:
            assert isinstance(outcome, RequestAbortedError)
    await idle(engine)


async def until_ahead(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  an engine's counters have no event to wait for
            await asyncio.sleep(0)


async def test_the_cache_is_flushed_between_steps_although_some_are_ahead(
    start_ahead: StartEngine,
) -> None:
    engine = await start_ahead()
    reader = asyncio.create_task(read(engine, ask(PROMPT, max_tokens=60)))
    await until_ahead(lambda: engine.stats().steps_ahead > 3)

    await engine.cache.flush()

    assert joined(await reader)[2] is FinishReason.LENGTH
    await idle(engine)
