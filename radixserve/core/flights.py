"""The plans that have been given out and not been answered: the step that runs, and one ahead."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from radixserve.core.req import ReqState
from radixserve.errors import InvariantError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from radixserve.core.plan import ScheduledReq, StepPlan
    from radixserve.core.req import Req
    from radixserve.types import ReqId

MAX_FLIGHTS = 2
"""The running step and the one ahead of it."""


class Flight(NamedTuple):
    """A plan that has been given out, and whom it computes for."""

    plan: StepPlan
    reqs: tuple[Req, ...]
    """Aligned with `plan.reqs`. The Reqs themselves: a name may be given to another one."""

    def live_rows(self) -> Iterator[tuple[int, ScheduledReq, Req]]:
        """Yield the rows that still matter.

        That of a Req which the step before has ended is void: nobody asks for what it computed.
        """
        for row, (scheduled, req) in enumerate(zip(self.plan.reqs, self.reqs, strict=True)):
            if req.state is ReqState.RUNNING:
                yield row, scheduled, req

    def carried(self, running: Iterable[Req]) -> list[Req]:
        """Return whom of `running` the plan computes for, swaps in, or copies to."""
        rows = {id(req) for req in self.reqs}
        swapped = {swap.req_id for swap in self.plan.swap_ins}
        targets = {copy.target for copy in self.plan.copies}
        return [
            req
            for req in running
            if id(req) in rows
            or req.req_id in swapped
            or (req.lease is not None and not targets.isdisjoint(req.lease.private_blocks))
        ]


class Flights:
    """The plans in flight, which are computed and answered in the order they were given out."""

    __slots__ = ("_flights",)

    def __init__(self) -> None:
        self._flights: deque[Flight] = deque()

    def __repr__(self) -> str:
        return f"<Flights {[flight.plan.step for flight in self._flights]}>"

    def __len__(self) -> int:
        return len(self._flights)

    def __iter__(self) -> Iterator[Flight]:
        """Oldest first."""
        return iter(self._flights)

    @property
    def oldest(self) -> Flight | None:
        """The one that is to be answered next."""
        return self._flights[0] if self._flights else None

    def begin(self, plan: StepPlan, running: Mapping[ReqId, Req]) -> StepPlan:
        """Give a plan out, and return it.

        Raises:
            InvariantError: it does not go on from the one before, or there are too many (8).
        """
        before = self._flights[-1].plan.step if self._flights else plan.follows
        if len(self._flights) == MAX_FLIGHTS or plan.follows != before:
            raise InvariantError(8, f"step {plan.step} is given out after {self!r}")
        self._flights.append(Flight(plan, tuple(running[row.req_id] for row in plan.reqs)))
        return plan

    def land(self, plan: StepPlan) -> Flight:
        """Take the oldest plan out: it has been answered.

        Raises:
            InvariantError: `plan` is not the oldest one (8).
        """
        if not self._flights or self._flights[0].plan is not plan:
            raise InvariantError(8, f"an answer to step {plan.step}, which is not due: {self!r}")
        return self._flights.popleft()
