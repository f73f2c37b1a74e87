"""Which live Reqs have run out of time."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from radixserve.types import ReqId


class Deadlines:
    """Moments at which Reqs end, whatever their state. Ended Reqs are forgotten lazily."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[float, ReqId]] = []

    def __repr__(self) -> str:
        return f"<Deadlines {len(self._heap)}>"

    def add(self, req_id: ReqId, deadline: float) -> None:
        """Take note of a Req's deadline, in seconds on `schedule`'s clock. O(log n)."""
        heapq.heappush(self._heap, (deadline, req_id))

    def take_expired(self, now: float) -> list[tuple[float, ReqId]]:
        """Return and forget the (deadline, name) pairs that lie in the past. O(k log n)."""
        expired = []
        while self._heap and self._heap[0][0] <= now:
            expired.append(heapq.heappop(self._heap))
        return expired

    def has_expired(self, now: float) -> bool:
        """Whether `take_expired` would return anything."""
        return bool(self._heap) and self._heap[0][0] <= now
