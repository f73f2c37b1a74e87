"""Where each live Req is: waiting in order, or running. The one owner of both collections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixserve.core.req import Req, ReqEvent, ReqState
from radixserve.core.waiting import WaitingQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from radixserve.core.req import ReqSpec
    from radixserve.types import ReqId


class Queues:
    """Waiting Reqs in order and running ones by name. A preempted Req has its old place again.

    Args:
        sort_key: The queue policy's.
    """

    __slots__ = ("_arrivals", "running", "waiting")

    def __init__(self, sort_key: Callable[[Req], Any]) -> None:
        self.waiting = WaitingQueue(sort_key)
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

    def arrive(self, spec: ReqSpec) -> None:
        """Let a new Req wait, behind those that arrived before."""
        self._arrivals += 1
        self.waiting.add(Req(spec, arrival=self._arrivals))

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
