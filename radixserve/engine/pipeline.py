"""`StepPipeline`: plans on their way through a launcher, oldest first.

put(plan)                 planned          the owner's thread
result(oldest plan)       launches all that were put, waits for the oldest      the worker's
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from radixserve.errors import BackendError
from radixserve.runtime.launch import FailedStep

if TYPE_CHECKING:
    from radixserve.core.plan import StepPlan, StepResult
    from radixserve.runtime.launch import PendingStep, StepLauncher


class StepPipeline:
    """Launches plans in the order they come in and hands their results out in that order.

    The owner's thread calls nothing while the worker is in `result`.

    Args:
        launcher: Used by nobody else.
    """

    __slots__ = ("_launcher", "_planned", "_under_way")

    def __init__(self, launcher: StepLauncher) -> None:
        self._launcher = launcher
        self._planned: deque[StepPlan] = deque()
        self._under_way: deque[PendingStep] = deque()

    def __repr__(self) -> str:
        return f"<StepPipeline {len(self._planned)} planned, {len(self._under_way)} under way>"

    @property
    def can_run_ahead(self) -> bool:
        """Whether a plan may be put in that takes the tokens of the one before."""
        return self._launcher.can_run_ahead

    def put(self, plan: StepPlan) -> None:
        """Queue a plan."""
        self._planned.append(plan)

    def result(self) -> StepResult:
        """Launch all that is planned, so that the device has work, and wait for the oldest step.

        Raises:
            BackendError: that step failed; those after it are still to be asked for.
        """
        while self._planned:
            self._under_way.append(self._launch(self._planned.popleft()))
        return self._under_way.popleft().result()

    def clear(self) -> None:
        """Forget all of it: whoever planned has given the steps up."""
        self._planned.clear()
        self._under_way.clear()

    def _launch(self, plan: StepPlan) -> PendingStep:
        """A launch that fails is that step's failure, not the one's that is waited for."""
        try:
            return self._launcher.launch(plan)
        except BackendError as failure:
            return FailedStep(failure)
