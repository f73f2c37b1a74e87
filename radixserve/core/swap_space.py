"""The swap space: KV of preempted Reqs in host memory.

A preempted Req gives its blocks back. The full ones stay in the tree, evictable, and whatever is
still there when the Req runs again is simply matched. What the tree had to give up meanwhile would
have to be computed again; a copy in host memory is what saves that.

    table at preemption   [ 7  3 | 4  9  2 ]        computed_len ends inside of block 2
                            shared  exclusive       first_block = 2: others stand above it

    SwappedKV               first_block 2, host blocks 0 1 2, num_tokens

    resumed, the tree has   [ 7  3  4 ]             -> host blocks 1 2 go to two new blocks
                            [ 7  3  4  9 ] + tail   -> all of it is there: the copy is dropped
                            [ 7 ]                   -> the part before the copy is lost: recompute

Only exclusive blocks are saved: those before them are locked by somebody else, and stay.

A host block is in exactly one of: the free list, one waiting Req's record, or the sources of the
running plan's swap-ins. The last are not free before that plan has been answered: a swap-out of
the same plan comes first and would overwrite them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixserve.core.block_pool import BlockPool
from radixserve.core.plan import BlockSwap
from radixserve.errors import InvariantError
from radixserve.types import BlockId, pack_ids

if TYPE_CHECKING:
    from collections.abc import Iterable

    from radixserve.core.plan import TransferCosts
    from radixserve.core.prefix_match import PrefixMatch
    from radixserve.core.req import Req


@dataclass(frozen=True, slots=True)
class SwappedKV:
    """Where a preempted Req's KV is in host memory."""

    first_block: int
    """Place in the Req's table of the first saved block."""
    host_blocks: tuple[BlockId, ...]
    num_tokens: int
    """Tokens of the Req, from its first on, that are computed once this has been restored."""


class SwapSpace:
    """A fixed number of host blocks, and who has what in them.

    Args:
        num_blocks: Host blocks, each as large as a block of the pool; 0 turns swapping off.
        block_size: Tokens a block.
        costs: What moving and computing KV cost here; None if nobody measured it.
    """

    def __init__(
        self, *, num_blocks: int, block_size: int, costs: TransferCosts | None = None
    ) -> None:
        self.pool = BlockPool(num_blocks)
        self.block_size = block_size
        self.costs = costs
        self._being_read: list[BlockId] = []

    def __repr__(self) -> str:
        return f"<SwapSpace {self.pool.num_free} free of {self.pool.num_blocks}>"

    @property
    def being_read(self) -> tuple[BlockId, ...]:
        """Host blocks that the running plan's swap-ins read."""
        return tuple(self._being_read)

    def save(self, req: Req, first_block: int) -> BlockSwap | None:
        """Take host blocks for a Req's KV from `first_block` of its table on.

        Args:
            req: Running, with all of its computed tokens really written.
        Returns: what to copy before anything else is written; None, and nothing changed, if
            there is nothing to save or the blocks cannot be had.
        Mutates: the host pool and `req.swapped`.
        Complexity: O(blocks).
        """
        assert req.lease is not None
        if req.swapped is not None:
            raise InvariantError(11, f"{req!r} is swapped out twice")
        table = req.lease.table[first_block : -(-req.computed_len // self.block_size)]
        host_blocks = self.pool.allocate(len(table)) if table else None
        if host_blocks is None:
            return None
        req.swapped = SwappedKV(first_block, tuple(host_blocks), req.computed_len)
        return BlockSwap(req.req_id, table.tobytes(), pack_ids(host_blocks))

    def can_restore(self, req: Req, match: PrefixMatch) -> bool:
        """Whether a Req's record continues `match` and has more than the tree."""
        saved = req.swapped
        return (
            saved is not None
            and saved.first_block * self.block_size <= match.matched_len
            and saved.num_tokens > match.total_len
        )

    def restore(self, req: Req) -> BlockSwap:
        """Copy back what a Req's lease does not share with the tree.

        Args:
            req: Just admitted, with a lease over a match for which `can_restore` was true.
        Returns: what to copy before anything of the Req is computed.
        Mutates: `req.swapped`, `req.computed_len`; the host blocks are free after `landed`.
        Complexity: O(blocks).
        """
        assert req.lease is not None
        assert req.swapped is not None
        saved, req.swapped = req.swapped, None
        shared = req.lease.num_shared
        end = saved.first_block + len(saved.host_blocks)
        sources = saved.host_blocks[shared - saved.first_block :]
        self._being_read.extend(saved.host_blocks)
        req.computed_len = saved.num_tokens
        targets = req.lease.table[shared:end]
        return BlockSwap(req.req_id, targets.tobytes(), pack_ids(sources))

    def drop(self, req: Req) -> None:
        """Give a Req's host blocks back, if it has any. No running plan may read them."""
        if req.swapped is not None:
            self.pool.free(req.swapped.host_blocks)
            req.swapped = None

    def forget(self, swap_outs: Iterable[BlockSwap], waiting: Iterable[Req]) -> None:
        """Drop what a failed plan was to save: nobody knows what of it was written.

        Args:
            waiting: Among them are its Reqs, which recompute.
        """
        names = {swap.req_id for swap in swap_outs}
        for req in waiting if names else ():
            if req.req_id in names:
                self.drop(req)

    def landed(self) -> None:
        """The running plan's swap-ins have been made, or given up with their Reqs."""
        self.pool.free(self._being_read)
        self._being_read.clear()
