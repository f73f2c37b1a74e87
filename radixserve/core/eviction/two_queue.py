"""2Q: a newcomer has to come back after its eviction before it may displace anybody."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING
from zlib import crc32

from radixserve.core.eviction.fifo import FifoIndex
from radixserve.core.eviction.ghost_list import MAX_GHOSTS, GhostList
from radixserve.core.eviction.index import EvictionIndex
from radixserve.core.eviction.lru import LruIndex

if TYPE_CHECKING:
    from collections.abc import Iterator

    from radixserve.core.node import Node

NEWCOMER_SHARE = 0.25


class TwoQueueIndex(EvictionIndex):
    """Newcomers first in, first out while they are more than their share; else the LRU main queue.

    Args:
        block_bytes: Bytes of a block's tokens.
        newcomer_share: Leaves that newcomers may have, as a share of all.
        max_ghosts: Evicted newcomers that are recognised when they come back.
    Source: Johnson and Shasha, VLDB 1994.
    """

    needs_digests = True

    def __init__(
        self,
        *,
        block_bytes: int,
        newcomer_share: float = NEWCOMER_SHARE,
        max_ghosts: int = MAX_GHOSTS,
    ) -> None:
        self._block_bytes = block_bytes
        self._share = newcomer_share
        self._newcomers = FifoIndex()
        self._main = LruIndex()
        self._known: set[Node] = set()
        """Nodes that came back: they are filed in the main queue."""
        self._ghosts = GhostList(max_ghosts)

    def __repr__(self) -> str:
        return f"<TwoQueueIndex {len(self._newcomers)} newcomers, {len(self._main)} in main>"

    def born(self, node: Node) -> None:
        """A new run: is it one that was evicted lately?"""
        if self._ghosts.recall(self._digest(node)):
            self._known.add(node)

    def split(self, upper: Node, lower: Node) -> None:
        """Both parts of a known run are known."""
        if lower in self._known:
            self._known.add(upper)

    def add(self, leaf: Node) -> None:
        """Take in an unlocked leaf. Complexity: O(log n)."""
        self._queue_of(leaf).add(leaf)

    def remove(self, leaf: Node) -> None:
        """Forget a leaf. Complexity: O(log n)."""
        self._queue_of(leaf).remove(leaf)

    def first(self) -> Node | None:
        """Return the oldest newcomer, or the oldest of the main queue if they are few. O(1)."""
        return self._next_queue().first()

    def pop(self) -> Node:
        """Take out the leaf that `first` returns. Complexity: O(1), amortised."""
        leaf = self._next_queue().pop()
        self._note_evicted(leaf)
        return leaf

    def evicted(self, leaf: Node) -> None:
        """Forget a leaf, but for the digest of a newcomer."""
        self.remove(leaf)
        self._note_evicted(leaf)

    def _note_evicted(self, leaf: Node) -> None:
        if leaf in self._known:
            self._known.discard(leaf)
        else:
            self._ghosts.add(self._digest(leaf))

    def __iter__(self) -> Iterator[Node]:
        """All the leaves: the queue that is next, then the other."""
        if self._next_queue() is self._main:
            return chain(self._main, self._newcomers)
        return chain(self._newcomers, self._main)

    def __len__(self) -> int:
        return len(self._newcomers) + len(self._main)

    def check(self) -> None:
        """Both queues are in order."""
        self._newcomers.check()
        self._main.check()

    def _digest(self, node: Node) -> int:
        return crc32(node.first_block(self._block_bytes), node.digest)

    def _queue_of(self, leaf: Node) -> FifoIndex | LruIndex:
        return self._main if leaf in self._known else self._newcomers

    def _next_queue(self) -> FifoIndex | LruIndex:
        are_many = len(self._newcomers) > self._share * len(self)
        return self._newcomers if are_many or not self._main else self._main
