"""The order of a batch in which requests that share blocks are neighbours.

Block tables sorted as strings put all that begin alike side by side, at every depth at once:

    plan       [7 2 5]  [9]  [7 2 6]  [7 3]        what the scheduler happened to say
    computed   [7 2 5]  [7 2 6]  [7 3]  [9]        7 is read by the first three, 7 2 by two of them

Attention that reads shared blocks once needs no more than that. Nobody above notices: the result
comes back in the plan's order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from radixserve.core.plan import ScheduledReq, StepPlan, StepResult
    from radixserve.runtime.step_runner import StepRunner
    from radixserve.runtime.step_times import StepTimes

Value = TypeVar("Value")


def tree_order(reqs: Sequence[ScheduledReq]) -> list[int]:
    """Return the rows of a plan in the order of their block tables; equal tables stay as they are.

    Of all the requests whose tables begin with the same blocks, none is apart from the others.

    Complexity: O(n log n) comparisons of tables, each as long as what two of them share.
    """
    return sorted(range(len(reqs)), key=lambda row: bytes(reqs[row].block_table))


def in_order(plan: StepPlan, order: Sequence[int]) -> StepPlan:
    """Return the plan with row `order[i]` at place i."""
    return replace(plan, reqs=tuple(plan.reqs[row] for row in order))


def back_in_place(result: StepResult, order: Sequence[int]) -> StepResult:
    """Return the result of a plan from that of the same plan in another order.

    Args:
        result: Of the plan that `in_order` made.
        order: What `in_order` was given.
    """
    place_of = {row: place for place, row in enumerate(order)}
    return replace(
        result,
        next_tokens=tuple(result.next_tokens[place_of[row]] for row in range(len(order))),
        row_errors=_by_row(result.row_errors, order),
        forced_tokens=_by_row(result.forced_tokens, order),
        logprobs=_by_row(result.logprobs, order),
        prompt_logprobs=_by_row(result.prompt_logprobs, order),
    )


def _by_row(values: Mapping[int, Value], order: Sequence[int]) -> dict[int, Value]:
    return {order[place]: value for place, value in values.items()}


class TreeOrderedRunner:
    """A runner that sees each plan in the order of the tree.

    Args:
        inner: What computes.
    """

    def __init__(self, inner: StepRunner) -> None:
        self._inner = inner

    @property
    def times(self) -> StepTimes:
        """Those of the inner runner."""
        return self._inner.times

    def kernel_seconds(self) -> dict[str, float]:
        """Return what the inner runner says."""
        return self._inner.kernel_seconds()

    def execute(self, plan: StepPlan) -> StepResult:
        """Compute a plan; see `StepRunner`. The result is in the plan's own order."""
        order = tree_order(plan.reqs)
        if order == list(range(len(order))):
            return self._inner.execute(plan)
        return back_in_place(self._inner.execute(in_order(plan, order)), order)
