"""Which running Req gives way when blocks run out, and what becomes of its KV. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from radixserve.core.plan import TransferCosts
    from radixserve.core.req import Req

Method: TypeAlias = Literal["recompute", "swap"]
PreemptionMode: TypeAlias = Literal["auto", "recompute", "swap"]


def queue_order(req: Req) -> tuple[int, int]:
    """Sort key: higher priority first, then order of arrival."""
    return (-req.spec.priority, req.arrival)


def choose_victim(running: Sequence[Req], *, block_size: int) -> Req | None:
    """Return the Req to preempt: lowest priority, then cheapest loss, then youngest.

    The loss is what has to be computed again even if the tree keeps all that was published: the
    tokens in the Req's own blocks, as a rule a partly filled last one.

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
        return (req.spec.priority, unpublished_len(req, block_size), -req.arrival)

    return min(others, key=cost)


def unpublished_len(req: Req, block_size: int) -> int:
    """Return how many of a running Req's computed tokens are in no block of the tree."""
    shared = req.lease.num_shared if req.lease else 0
    return max(0, req.computed_len - shared * block_size)


def expected_demand(others: Iterable[Req], block_size: int) -> int:
    """Return the blocks that running Reqs will take until the first of them ends at its limit.

    A preempted Req waits at least until somebody ends, and the others grow at the expense of what
    it left in the tree. A stop token may end somebody sooner: this is the most to be expected.

    Complexity: O(n).
    """
    growing = [req for req in others if req.lease is not None]
    if not growing:
        return 0
    steps = min(req.max_total_len - req.total_len for req in growing)
    demand = 0
    for req in growing:
        assert req.lease is not None
        end = min(req.total_len + steps, req.max_total_len - 1)
        demand += max(0, -(-end // block_size) - len(req.lease.table))
    return demand


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What a victim stands to lose, in blocks and tokens that nobody else uses."""

    published_blocks: int
    """Full blocks in the tree: lost as far as others need them before the victim runs again."""
    unpublished_tokens: int
    """Computed tokens that are in no block of the tree: lost in any case."""
    demand: int
    """Blocks that the others are expected to take before the victim runs again."""
    block_size: int

    @property
    def saved_blocks(self) -> int:
        """Blocks that a swap copies out: all, since nobody knows yet which will be lost."""
        return self.published_blocks - (-self.unpublished_tokens // self.block_size)

    @property
    def expected_blocks(self) -> int:
        """Blocks that will have to be copied back in, or computed again."""
        return self.saved_blocks - self.published_blocks + self._evicted_blocks

    @property
    def expected_tokens(self) -> int:
        """Computed tokens in these."""
        return self.unpublished_tokens + self._evicted_blocks * self.block_size

    @property
    def _evicted_blocks(self) -> int:
        return min(self.published_blocks, self.demand)


def choose_method(
    mode: PreemptionMode, loss: Loss, *, costs: TransferCosts | None, free_host_blocks: int
) -> Method:
    """Return what becomes of a victim's KV.

    Args:
        mode: recompute and swap are taken at their word; auto takes what costs less time.
        loss: What is at stake.
        costs: Measured on this machine; without any, auto recomputes.
        free_host_blocks: A victim whose blocks do not all fit in them is recomputed.
    """
    saved = loss.saved_blocks
    if mode == "recompute" or not 0 < saved <= free_host_blocks:
        return "recompute"
    if mode == "swap":
        return "swap"
    if costs is None:
        return "recompute"
    swap_s = costs.copy_s(saved) + costs.copy_s(loss.expected_blocks)
    return "swap" if swap_s < costs.prefill_s(loss.expected_tokens) else "recompute"
