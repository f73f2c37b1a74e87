"""What a queue policy is, and what it may look at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from radixserve.core.req import Req
    from radixserve.core.waiting import WaitingQueue


class QueueView(Protocol):
    """The scheduler's side of a decision."""

    def cached_len(self, req: Req) -> int:
        """Tokens of a Req that the tree holds now. Costs a match, unless the tree is unchanged."""

    def attained(self, tenant: str) -> float:
        """Service a tenant has had: tokens computed for it, an output token counting for more."""


class QueuePolicy(Protocol):
    """An order of the waiting queue. May remember where it was; belongs to one scheduler."""

    honours_priority: bool
    """Whether a running Req may be preempted for a waiting one of a strictly higher priority."""

    def sort_key(self, req: Req) -> Any:
        """Return where a Req is filed in `WaitingQueue.indexed`; fixed while it waits."""

    def candidates(self, queue: WaitingQueue, view: QueueView) -> Iterator[Req]:
        """Yield waiting Reqs, the one to admit first, first. The queue is unchanged meanwhile."""

    def admitted(self, req: Req) -> None:
        """Take note that `req`, a candidate, has been admitted."""
