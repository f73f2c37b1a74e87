"""Policies that look at nothing but priority and arrival."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from radixserve.core.policies.protocol import QueueView
    from radixserve.core.req import Req
    from radixserve.core.waiting import WaitingQueue


class FirstComeFirstServed:
    """Order of arrival, whatever the priority. Waits for at most those who came before."""

    honours_priority = False

    def sort_key(self, req: Req) -> int:
        """By arrival."""
        return req.arrival

    def candidates(self, queue: WaitingQueue, view: QueueView) -> Iterator[Req]:
        """Yield in order of arrival. Complexity: O(1) each."""
        del view
        return iter(queue)

    def admitted(self, req: Req) -> None:
        """Nothing to remember."""


class PriorityThenArrival:
    """Higher priority first, then order of arrival. A low priority can wait for ever."""

    honours_priority = True

    def sort_key(self, req: Req) -> tuple[int, int]:
        """By priority, then arrival."""
        return (-req.spec.priority, req.arrival)

    def candidates(self, queue: WaitingQueue, view: QueueView) -> Iterator[Req]:
        """Yield in order of priority, then arrival. Complexity: O(1) each."""
        del view
        return iter(queue.indexed)

    def admitted(self, req: Req) -> None:
        """Nothing to remember."""
