"""What the engine asks of whatever computes its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from radixserve.core.plan import StepPlan, StepResult
    from radixserve.runtime.step_times import StepTimes


class StepRunner(Protocol):
    """Computes plans, one after the other."""

    @property
    def times(self) -> StepTimes:
        """Where the time of the steps goes; the engine adds its own parts."""
        ...

    def kernel_seconds(self) -> dict[str, float]:
        """Return the seconds spent so far in each kind of kernel; empty where nobody counts."""
        ...

    def execute(self, plan: StepPlan) -> StepResult:
        """Make the plan's swaps and copies, compute its tokens, and sample where it says so.

        Raises:
            BackendError: the forward pass failed; what it wrote to the plan's blocks is void.
        """
        ...
