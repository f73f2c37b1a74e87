"""Launchers: what is queued is computed in order, and a row that takes a token gets it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from radixserve.core.plan import SamplingState, ScheduledReq, StepPlan, StepResult
from radixserve.engine.pipeline import StepPipeline
from radixserve.errors import BackendError, InvariantError
from radixserve.runtime.launch import ImmediateLauncher
from radixserve.runtime.step_times import StepTimes
from radixserve.types import ReqId, SamplingParams, pack_ids, unpack_ids
from tests.kit.late_launcher import LateLauncher, with_tokens

if TYPE_CHECKING:
    from radixserve.runtime.launch import PendingStep

STATE = SamplingState(SamplingParams(temperature=0.0), output_len=0)


class Successor:
    """Answers each row with the number after its token; refuses the steps it is told to."""

    def __init__(self, *refused: int) -> None:
        self.refused = refused
        self.computed: list[int] = []
        self.times = StepTimes()

    def kernel_seconds(self) -> dict[str, float]:
        return {}

    def execute(self, plan: StepPlan) -> StepResult:
        if plan.step in self.refused:
            raise BackendError(f"not step {plan.step}")
        self.computed.append(plan.step)
        tokens = (unpack_ids(row.token_ids)[-1] for row in plan.reqs)
        return StepResult(plan.step, tuple(token + 1 for token in tokens))


def decode(*tokens: int, step: int) -> StepPlan:
    rows = [
        ScheduledReq(ReqId(f"r{token}"), pack_ids([token]), 0, pack_ids([0]), STATE)
        for token in tokens
    ]
    return StepPlan(step, tuple(rows))


def takes(*rows: int, step: int) -> StepPlan:
    """A plan that follows the step before."""
    plan = decode(*(0 for _ in rows), step=step)
    reqs = tuple(req._replace(takes=row) for req, row in zip(plan.reqs, rows, strict=True))
    return StepPlan(step, reqs, follows=step - 1)


def test_rows_take_the_tokens_of_the_rows_they_name() -> None:
    plan = with_tokens(takes(2, 0, step=4), [7, 8, 9])

    assert [unpack_ids(row.token_ids) for row in plan.reqs] == [[9], [7]]


def test_a_row_without_a_token_is_followed_by_a_void_one() -> None:
    plan = with_tokens(takes(1, 0, step=4), [7, None])

    assert [unpack_ids(row.token_ids) for row in plan.reqs] == [[0], [7]]


def test_a_plan_that_takes_nothing_is_the_same_plan() -> None:
    assert with_tokens(decode(5, 6, step=1), []) == decode(5, 6, step=1)


def test_an_immediate_launcher_computes_at_once_and_never_ahead() -> None:
    runner = Successor()
    launcher = ImmediateLauncher(runner)

    pending = launcher.launch(decode(5, step=1))

    assert runner.computed == [1]
    assert pending.result().next_tokens == (6,)
    assert not launcher.can_run_ahead


def test_a_late_launcher_computes_when_the_result_is_asked_for() -> None:
    runner = Successor()
    launcher = LateLauncher(runner)
    steps: list[PendingStep] = [launcher.launch(decode(5, 8, step=1))]
    steps.append(launcher.launch(takes(1, 0, step=2)))
    assert runner.computed == []

    assert steps[0].result().next_tokens == (6, 9)
    steps.append(launcher.launch(takes(0, step=3)))

    assert steps[1].result().next_tokens == (10, 7)
    assert steps[2].result().next_tokens == (11,)
    assert steps[2].result().next_tokens == (11,)
    assert runner.computed == [1, 2, 3]


def test_a_plan_that_follows_another_step_is_refused() -> None:
    launcher = LateLauncher(Successor())
    launcher.launch(decode(5, step=1))

    with pytest.raises(InvariantError):
        launcher.launch(takes(0, step=3))


def test_what_follows_a_failed_step_fails_too() -> None:
    launcher = LateLauncher(Successor(1))
    first, second = launcher.launch(decode(5, step=1)), launcher.launch(takes(0, step=2))

    with pytest.raises(BackendError, match="not step 1"):
        first.result()
    with pytest.raises(BackendError, match="step 2 follows step 1"):
        second.result()


def test_a_failed_launch_is_the_failure_of_its_own_step() -> None:
    class Choosy(LateLauncher):
        def launch(self, plan: StepPlan) -> PendingStep:
            if plan.step == 2:
                raise BackendError("no room to launch")
            return super().launch(plan)

    pipeline = StepPipeline(Choosy(Successor()))
    pipeline.put(decode(5, step=1))
    pipeline.put(takes(0, step=2))

    assert pipeline.result().next_tokens == (6,)
    with pytest.raises(BackendError, match="no room to launch"):
        pipeline.result()
    pipeline.put(decode(7, step=3))
    assert pipeline.result().next_tokens == (8,)
