"""The free list: which of the KV blocks belong to nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve.errors import InvariantError
from radixserve.types import BlockId

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class BlockPool:
    """A fixed set of block ids, each either free or handed out.

    The block freed last is handed out first, so a small working set stays in the caches. Fresh
    pools hand out ascending ids, so a lone Req's blocks are neighbours in memory.
    """

    __slots__ = ("_free", "_is_free", "num_blocks")

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = [BlockId(i) for i in reversed(range(num_blocks))]
        self._is_free = bytearray(b"\x01") * num_blocks

    def __repr__(self) -> str:
        return f"<BlockPool {self.num_free} free of {self.num_blocks}>"

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now."""
        return len(self._free)

    def is_free(self, block: BlockId) -> bool:
        """Whether `block` is on the free list."""
        return bool(self._is_free[block])

    def allocate(self, count: int) -> list[BlockId] | None:
        """Take `count` blocks off the free list; None, and nothing changed, if there are fewer.

        Complexity: O(count).
        """
        if count > len(self._free):
            return None
        if count == 0:
            return []
        blocks = self._free[-count:]
        blocks.reverse()
        del self._free[-count:]
        for block in blocks:
            self._is_free[block] = 0
        return blocks

    def free(self, blocks: Sequence[BlockId]) -> None:
        """Put `blocks` back, so that they are handed out again in the same order.

        Raises:
            InvariantError: one of them is free already (1); nothing is changed then.
        Complexity: O(len(blocks)).
        """
        self._check_handed_out(blocks)
        for block in blocks:
            self._is_free[block] = 1
        self._free.extend(reversed(blocks))

    def _check_handed_out(self, blocks: Iterable[BlockId]) -> None:
        seen = set()
        for block in blocks:
            if self._is_free[block] or block in seen:
                raise InvariantError(1, f"block {block} is freed twice")
            seen.add(block)
