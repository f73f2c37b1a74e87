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
    from radixserve.runtime.launch import PendingStep, StepLauncher

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


class TreeOrderedLauncher:
    """A launcher that sees each plan in the order of the tree.

    Args:
        inner: What launches.
    """

    def __init__(self, inner: StepLauncher) -> None:
        self._inner = inner
        self._last_order: list[int] = []

    @property
    def can_run_ahead(self) -> bool:
        """What the inner launcher says."""
        return self._inner.can_run_ahead

    def launch(self, plan: StepPlan) -> PendingStep:
        """Queue a plan; see `StepLauncher`. Its result comes in the plan's own order.

        A row that takes the token of a row of the step before takes it from where that one went.
        """
        before, order = self._last_order, tree_order(plan.reqs)
        self._last_order = order
        if plan.follows is not None:
            plan = _taking_from(plan, before)
        if _is_plain(order):
            return self._inner.launch(plan)
        return _Moved(self._inner.launch(in_order(plan, order)), order)


class _Moved:
    """A step whose rows are computed in another order than the plan's."""

    def __init__(self, inner: PendingStep, order: Sequence[int]) -> None:
        self._inner = inner
        self._order = order

    def result(self) -> StepResult:
        return back_in_place(self._inner.result(), self._order)


def _taking_from(plan: StepPlan, order: Sequence[int]) -> StepPlan:
    """Return a plan whose rows take their tokens from places in `order`."""
    if _is_plain(order):
        return plan
    place_of = {row: place for place, row in enumerate(order)}
    rows = (
        req if req.takes is None else req._replace(takes=place_of[req.takes]) for req in plan.reqs
    )
    return replace(plan, reqs=tuple(rows))


def _is_plain(order: Sequence[int]) -> bool:
    return list(order) == list(range(len(order)))
