"""A launcher that runs ahead in the plainest way: what `DeviceLauncher` is held to."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from radixserve.errors import BackendError, InvariantError
from radixserve.types import pack_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.core.plan import StepPlan, StepResult
    from radixserve.runtime.launch import PendingStep
    from radixserve.runtime.step_runner import StepRunner
    from radixserve.types import TokenId


class LateLauncher:
    """Computes a plan when its result is asked for.

    Args:
        runner: Computes the plans, with all their tokens in them.
    """

    can_run_ahead = True

    def __init__(self, runner: StepRunner) -> None:
        self._runner = runner
        self._last: _LateStep | None = None

    def launch(self, plan: StepPlan) -> PendingStep:
        """Take note of a plan and of the one it follows.

        Raises:
            InvariantError: that is not the one launched last (8).
        """
        before = self._last if plan.follows is not None else None
        if plan.follows != (before.step if before else None):
            raise InvariantError(8, f"step {plan.step} follows {plan.follows}, after {before!r}")
        self._last = _LateStep(self._runner, plan, before)
        return self._last


def with_tokens(plan: StepPlan, tokens: Sequence[TokenId | None]) -> StepPlan:
    """Return a plan with the tokens in it that its rows take.

    Args:
        tokens: What each row of the step before sampled. Whoever had no token has ended with that
            step: its row is void, and computed with 0.
    """
    rows = (
        row if row.takes is None else row._replace(token_ids=pack_ids([tokens[row.takes] or 0]))
        for row in plan.reqs
    )
    return replace(plan, reqs=tuple(rows))


class _LateStep:
    """One that is computed when its result is first asked for, with the tokens of the one before.

    That one's result has been asked for by then.
    """

    def __init__(self, runner: StepRunner, plan: StepPlan, before: _LateStep | None) -> None:
        self.step = plan.step
        self._runner = runner
        self._plan = plan
        self._before = before
        self._result: StepResult | None = None

    def __repr__(self) -> str:
        return f"<_LateStep {self.step}>"

    def result(self) -> StepResult:
        if self._result is None:
            self._result = self._runner.execute(self._known_plan())
        return self._result

    def _known_plan(self) -> StepPlan:
        before, self._before = self._before, None
        if before is None:
            return self._plan
        if before._result is None:
            raise BackendError(f"step {self.step} follows step {before.step}, which has no result")
        return with_tokens(self._plan, before._result.next_tokens)
