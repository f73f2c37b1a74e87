"""A cache without KV: what a policy would hit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve.core.radix_tree import RadixTree
from radixserve.types import ID_BYTES, pack_ids

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve.core.eviction.hints import ReleaseHint
    from radixserve.core.eviction.index import EvictionIndex
    from radixserve.types import Namespace, PackedIds

ONE_MORE = pack_ids((0,))


class ShadowCache:
    """A tree of tokens alone, with its own eviction order.

    Args:
        num_blocks: What it may hold between two uses.
        block_size: Tokens a block.
        make_index: The order to be tried.
    """

    def __init__(
        self, num_blocks: int, block_size: int, make_index: Callable[[], EvictionIndex]
    ) -> None:
        self.num_blocks = num_blocks
        self._tree = RadixTree(block_size, make_index)

    def __repr__(self) -> str:
        return f"<ShadowCache of {self.num_blocks} blocks: {self._tree!r}>"

    def use(self, key: PackedIds, namespace: Namespace, hint: ReleaseHint) -> int:
        """Use a path; return how many of its leading tokens were there.

        Args:
            key: Whole blocks, packed.
        """
        tree = self._tree
        # A match leaves one token over; here all of the key may be a hit.
        found = tree.match_prefix(key + ONE_MORE, namespace)
        blocks = range(len(key) // (ID_BYTES * tree.block_size))
        tree.insert(key, blocks, namespace, hint)  # type: ignore[arg-type]
        tree.evict(max(0, tree.num_evictable_blocks - self.num_blocks))
        return found.matched_len
