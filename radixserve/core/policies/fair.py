"""Whoever has been served least goes first; within it, depth first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve.core.policies.sweep import AGED_EVERY, START, TurnOfAge, prompt_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from radixserve.core.policies.protocol import QueueView
    from radixserve.core.policies.sweep import PromptKey
    from radixserve.core.req import Req
    from radixserve.core.waiting import WaitingQueue

    FairKey = tuple[int, str, PromptKey]


class LeastAttainedService:
    """Within the highest priority, the tenant that has been served least, swept depth first.

    Service is tokens: prompt tokens computed (cached ones are free) and output tokens, which
    count for more because each takes a step. A tenant that comes back after a pause is treated as
    if it had had as much as the least served of the others: silence is not saved up.

    Each `aged_every`-th admission is the Req that arrived first, which bounds every wait as in
    `Sweep`.
    """

    honours_priority = True

    def __init__(self, aged_every: int = AGED_EVERY) -> None:
        self._age = TurnOfAge(aged_every)
        self._cursors: dict[tuple[int, str], PromptKey] = {}

    def sort_key(self, req: Req) -> FairKey:
        """By priority, tenant, namespace and tokens."""
        return (-req.spec.priority, req.spec.tenant, prompt_key(req))

    def candidates(self, queue: WaitingQueue, view: QueueView) -> Iterator[Req]:
        """Yield the least served tenant's Reqs first. Complexity: O(tenants log n)."""
        if self._age.is_due(queue):
            yield from queue
            return
        groups = sorted(self._groups(queue), key=lambda group: (group[0], view.attained(group[1])))
        for rank, tenant in groups:
            cursor = self._cursors.get((rank, tenant), START)
            yield from queue.between((rank, tenant, cursor), (rank, tenant + "\0"))
            yield from queue.between((rank, tenant), (rank, tenant, cursor))

    def admitted(self, req: Req) -> None:
        """Go on behind this one, and count towards the turn of age."""
        self._cursors[-req.spec.priority, req.spec.tenant] = prompt_key(req)
        self._age.admitted(req)

    def _groups(self, queue: WaitingQueue) -> Iterator[tuple[int, str]]:
        """Yield each (negated priority, tenant) that waits."""
        reqs = iter(queue.indexed)
        while (first := next(reqs, None)) is not None:
            group = (-first.spec.priority, first.spec.tenant)
            yield group
            reqs = queue.from_key((group[0], group[1] + "\0"))
