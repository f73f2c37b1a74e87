"""What the engine asks of whatever computes its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from radixserve.core.plan import StepPlan, StepResult


class StepRunner(Protocol):
    """Computes plans, one after the other."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Make the plan's swaps and copies, compute its tokens, and sample where it says so.

        Raises:
            BackendError: the forward pass failed; what it wrote to the plan's blocks is void.
        """
        ...
