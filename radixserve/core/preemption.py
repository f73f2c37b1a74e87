"""Which running Req gives way when blocks run out. A pure function."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.core.req import Req


def queue_order(req: Req) -> tuple[int, int]:
    """Sort key: higher priority first, then order of arrival."""
    return (-req.spec.priority, req.arrival)


def choose_victim(running: Sequence[Req], *, block_size: int) -> Req | None:
    """Return the Req to preempt: lowest priority, then cheapest loss, then youngest.

    The loss is what has to be computed again even if the tree keeps all that was published: the
    tokens in the Req's partly filled last block.

    The first in queue order is never chosen. It therefore always makes progress, ends, and is
    followed by the next: preemption cannot go round in circles.

    Returns: None if only one Req, or none, is running.
    Complexity: O(n).
    """
    if len(running) < 2:
        return None
    head = min(running, key=queue_order)
    others = (req for req in running if req is not head)

    def cost(req: Req) -> tuple[int, int, int]:
        return (req.spec.priority, req.computed_len % block_size, -req.arrival)

    return min(others, key=cost)
