"""Segmented LRU: what was used only once goes before all that was used again."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from radixserve.core.eviction.index import EvictionIndex
from radixserve.core.eviction.lru import LruIndex

if TYPE_CHECKING:
    from collections.abc import Iterator

    from radixserve.core.node import Node

PROTECTED_SHARE = 0.8


class SlruIndex(EvictionIndex):
    """Leaves on probation, least recently used first; then the protected ones, likewise.

    A leaf that was used twice is protected; when too many are, the oldest goes back on probation.

    Args:
        protected_share: Most protected leaves, as a share of all.
    Source: Karedla, Love and Wherry, IEEE Computer 27(3), 1994.
    """

    def __init__(self, protected_share: float = PROTECTED_SHARE) -> None:
        self._share = protected_share
        self._probation = LruIndex()
        self._protected = LruIndex()
        self._is_protected: set[Node] = set()

    def __repr__(self) -> str:
        return f"<SlruIndex {len(self._probation)} on probation, {len(self._protected)} protected>"

    def add(self, leaf: Node) -> None:
        """Take in an unlocked leaf. Complexity: O(log n)."""
        if leaf.hits < 2:
            self._probation.add(leaf)
            return
        self._protected.add(leaf)
        self._is_protected.add(leaf)
        if len(self._protected) > self._share * len(self):
            oldest = self._protected.pop()
            self._is_protected.discard(oldest)
            self._probation.add(oldest)

    def remove(self, leaf: Node) -> None:
        """Forget a leaf. Complexity: O(log n)."""
        if leaf in self._is_protected:
            self._is_protected.discard(leaf)
            self._protected.remove(leaf)
        else:
            self._probation.remove(leaf)

    def first(self) -> Node | None:
        """Return the oldest leaf on probation, else the oldest protected one. O(1)."""
        return self._probation.first() or self._protected.first()

    def pop(self) -> Node:
        """Take out the leaf that `first` returns. Complexity: O(1), amortised."""
        if self._probation:
            return self._probation.pop()
        leaf = self._protected.pop()
        self._is_protected.discard(leaf)
        return leaf

    def __iter__(self) -> Iterator[Node]:
        return chain(self._probation, self._protected)

    def __len__(self) -> int:
        return len(self._probation) + len(self._protected)

    def check(self) -> None:
        """Both segments are in order."""
        self._probation.check()
        self._protected.check()
