"""The waiting Reqs, by arrival and by whatever the policy files them under."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sortedcontainers import SortedKeyList

from radixserve.core.preemption import queue_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from radixserve.core.req import Req


class WaitingQueue:
    """Waiting Reqs in three orders at once: arrival, urgency and the policy's.

    Args:
        sort_key: The policy's; equal keys keep the order of arrival.
    """

    __slots__ = ("by_arrival", "by_urgency", "indexed", "num_tokens", "resuming")

    def __init__(self, sort_key: Callable[[Req], Any]) -> None:
        self.by_arrival: SortedKeyList[Req] = SortedKeyList(key=lambda req: req.arrival)
        self.by_urgency: SortedKeyList[Req] = SortedKeyList(key=queue_order)
        """Higher priority first, then arrival."""
        self.indexed: SortedKeyList[Req] = SortedKeyList(
            key=lambda req: (sort_key(req), req.arrival)
        )
        self.resuming: SortedKeyList[Req] = SortedKeyList(key=queue_order)
        """Those that have run before, in order of urgency."""
        self.num_tokens = 0
        """Tokens of all the waiting Reqs."""

    def __repr__(self) -> str:
        return f"<WaitingQueue {len(self)} Reqs, {self.num_tokens} tokens>"

    def __len__(self) -> int:
        return len(self.by_arrival)

    def __iter__(self) -> Iterator[Req]:
        """In order of arrival."""
        return iter(self.by_arrival)

    def add(self, req: Req) -> None:
        """Let a Req wait, at the place its arrival gives it. Complexity: O(log n)."""
        self.by_arrival.add(req)
        self.by_urgency.add(req)
        self.indexed.add(req)
        if req.has_run:
            self.resuming.add(req)
        self.num_tokens += req.total_len

    def remove(self, req: Req) -> None:
        """Take a Req out. Complexity: O(log n)."""
        self.by_arrival.remove(req)
        self.by_urgency.remove(req)
        self.indexed.remove(req)
        if req.has_run:
            self.resuming.remove(req)
        self.num_tokens -= req.total_len

    def oldest(self) -> Req | None:
        """Return the Req that arrived first, None if nothing waits."""
        return self.by_arrival[0] if self.by_arrival else None

    def most_urgent(self) -> Req | None:
        """Return the Req of the highest priority that arrived first; None if nothing waits."""
        return self.by_urgency[0] if self.by_urgency else None

    def from_key(self, key: Any) -> Iterator[Req]:
        """Yield the indexed Reqs whose sort key is `key` or greater, in order."""
        return iter(self.indexed.irange_key((key,), None))

    def between(self, low: Any, high: Any) -> Iterator[Req]:
        """Yield the indexed Reqs with `low <= sort key < high`, in order."""
        return iter(self.indexed.irange_key((low,), (high,), inclusive=(True, False)))
