"""Longest cached prefix first, among the oldest few."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from radixserve.core.policies.arrival import PriorityThenArrival

if TYPE_CHECKING:
    from collections.abc import Iterator

    from radixserve.core.policies.protocol import QueueView
    from radixserve.core.req import Req
    from radixserve.core.waiting import WaitingQueue

RANKED_WINDOW = 128
"""Reqs that are matched against the tree in one step. Those behind keep their order, so that a
step's cost does not grow with the queue."""


class LongestPrefixFirst(PriorityThenArrival):
    """Within a priority, of the first `RANKED_WINDOW` Reqs the longest cached prefix first.

    The plain policy of the papers: a Req with a cold prompt can wait for as long as warm ones
    come (sglang #31954). `sweep` bounds the wait.
    """

    def candidates(self, queue: WaitingQueue, view: QueueView) -> Iterator[Req]:
        """Yield the ranked window, then the rest.

        Complexity: a match for each of the window where the tree has changed, and a sort.
        """
        in_order = iter(queue.indexed)
        window = list(islice(in_order, RANKED_WINDOW))
        window.sort(key=lambda req: (-req.spec.priority, -view.cached_len(req)))
        yield from window
        yield from in_order
