"""Where each live Req is: waiting in order, or running. The one owner of both collections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sortedcontainers import SortedKeyList

from radixserve.core.preemption import queue_order
from radixserve.core.req import Req, ReqEvent, ReqState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from radixserve.core.req import ReqSpec
    from radixserve.types import ReqId


class Queues:
    """Waiting Reqs in queue order and running ones by name.

    Queue order is higher priority first, then arrival; a preempted Req has its old place again.
    """

    __slots__ = ("_arrivals", "running", "waiting")

    def __init__(self) -> None:
        self.waiting: SortedKeyList[Req] = SortedKeyList(key=queue_order)
        self.running: dict[ReqId, Req] = {}
        self._arrivals = 0

    def __repr__(self) -> str:
        return f"<Queues waiting={len(self.waiting)} running={len(self.running)}>"

    def __iter__(self) -> Iterator[Req]:
        yield from self.waiting
        yield from self.running.values()

    def find(self, req_id: ReqId) -> Req | None:
        """Return the live Req of that name. Complexity: O(1) if it is running, else O(n)."""
        running = self.running.get(req_id)
        if running is not None:
            return running
        return next((req for req in self.waiting if req.req_id == req_id), None)

    def arrive(self, spec: ReqSpec, now: float) -> None:
        """Put a new Req behind all others of its priority."""
        self._arrivals += 1
        self.waiting.add(Req(spec, arrival=self._arrivals, now=now))

    def admit(self, req: Req) -> None:
        """Waiting -> running."""
        self.waiting.remove(req)
        req.apply(ReqEvent.ADMIT)
        self.running[req.req_id] = req

    def preempt(self, req: Req) -> None:
        """Running -> waiting, at its old place."""
        del self.running[req.req_id]
        req.apply(ReqEvent.PREEMPT)
        self.waiting.add(req)

    def finish(self, req: Req) -> None:
        """Out of here, from wherever it is."""
        if req.state is ReqState.WAITING:
            self.waiting.remove(req)
        else:
            del self.running[req.req_id]
        req.apply(ReqEvent.FINISH)
