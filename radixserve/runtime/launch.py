"""How a step is begun and how its result is waited for.

    pending = launcher.launch(plan)      returns as soon as the work is queued
    result  = pending.result()           waits for it

On a device that works by itself a plan may be launched while the one before is still computed, and
take its tokens: the launcher replaces them, where they are. Plans are launched in the order in
which they were given out, computed in that order, and their results asked for in that order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from radixserve.errors import BackendError, InvariantError
from radixserve.types import pack_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.core.plan import StepPlan, StepResult
    from radixserve.runtime.step_runner import StepRunner
    from radixserve.types import TokenId


class PendingStep(Protocol):
    """A step under way."""

    def result(self) -> StepResult:
        """Wait for the result.

        Raises:
            BackendError: the step failed; what it wrote to the plan's blocks is void.
        """
        ...


class StepLauncher(Protocol):
    """Begins steps."""

    @property
    def can_run_ahead(self) -> bool:
        """Whether a plan that takes the tokens of a step still under way may be launched."""
        ...

    def launch(self, plan: StepPlan) -> PendingStep:
        """Queue a plan behind those launched before.

        Raises:
            BackendError: it cannot be queued; nothing of it will be computed.
        """
        ...


class ImmediateLauncher:
    """Computes each plan before `launch` returns: for backends that use the caller's processor.

    Args:
        runner: Computes them.
    """

    can_run_ahead = False

    def __init__(self, runner: StepRunner) -> None:
        self._runner = runner

    def launch(self, plan: StepPlan) -> PendingStep:
        """Compute a plan."""
        return _ComputedStep(self._runner.execute(plan))


class OrderedLauncher:
    """Runs ahead without a device: computes a plan when its result is asked for.

    What every launcher that runs ahead must give, in the plainest way; slower than
    `ImmediateLauncher`, since there is nothing to overlap with.

    Args:
        runner: Computes the plans, with all their tokens in them.
    """

    can_run_ahead = True

    def __init__(self, runner: StepRunner) -> None:
        self._runner = runner
        self._last: _OrderedStep | None = None

    def launch(self, plan: StepPlan) -> PendingStep:
        """Take note of a plan and of the one it follows.

        Raises:
            InvariantError: that is not the one launched last (8).
        """
        before = self._last if plan.follows is not None else None
        if plan.follows != (before.step if before else None):
            raise InvariantError(8, f"step {plan.step} follows {plan.follows}, after {before!r}")
        self._last = _OrderedStep(self._runner, plan, before)
        return self._last


class FailedStep:
    """A step that could not be launched.

    Args:
        failure: Why.
    """

    def __init__(self, failure: BackendError) -> None:
        self._failure = failure

    def result(self) -> StepResult:
        """Raise the failure."""
        raise self._failure


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


class _ComputedStep:
    def __init__(self, result: StepResult) -> None:
        self._result = result

    def result(self) -> StepResult:
        return self._result


class _OrderedStep:
    """One that is computed when its result is first asked for, with the tokens of the one before.

    That one's result has been asked for by then.
    """

    def __init__(self, runner: StepRunner, plan: StepPlan, before: _OrderedStep | None) -> None:
        self.step = plan.step
        self._runner = runner
        self._plan = plan
        self._before = before
        self._result: StepResult | None = None

    def __repr__(self) -> str:
        return f"<_OrderedStep {self.step}>"

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
