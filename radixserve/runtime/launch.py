"""How a step is begun and how its result is waited for.

    pending = launcher.launch(plan)      returns as soon as the work is queued
    result  = pending.result()           waits for it

On a device that works by itself a plan may be launched while the one before is still computed, and
take its tokens: the launcher replaces them, where they are. Plans are launched in the order in
which they were given out, computed in that order, and their results asked for in that order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from radixserve.errors import BackendError, InvariantError

if TYPE_CHECKING:
    from radixserve.core.plan import StepPlan, StepResult
    from radixserve.runtime.model_runner import ModelRunner, StepUnderWay
    from radixserve.runtime.step_runner import StepRunner


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


class DeviceLauncher:
    """Queues each plan on the device that the model is on, and waits for none.

    A plan that takes the tokens of the one before finds them there, where they were sampled. Right
    on the host, too, where there is nothing to overlap with.

    Args:
        runner: Queues them.
    """

    can_run_ahead = True

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._last: StepUnderWay | None = None

    def launch(self, plan: StepPlan) -> PendingStep:
        """Queue a plan behind those launched before.

        Raises:
            BackendError: it could not be queued, or the one could not whose tokens it takes.
            InvariantError: that is not the one launched last (8).
        """
        before, self._last = self._last, None
        if plan.follows is None:
            before = None
        elif before is None:
            raise BackendError(f"step {plan.step} follows step {plan.follows}, which did not begin")
        elif before.plan.step != plan.follows:
            why = f"step {plan.step} follows {plan.follows}, but {before.plan.step} was launched"
            raise InvariantError(8, why)
        self._last = self._runner.begin(plan, before)
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


class _ComputedStep:
    def __init__(self, result: StepResult) -> None:
        self._result = result

    def result(self) -> StepResult:
        return self._result
