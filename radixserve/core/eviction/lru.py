"""Least recently used first: the default."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sortedcontainers import SortedList

from radixserve.core.eviction.index import EvictionIndex
from radixserve.errors import InvariantError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from radixserve.core.node import Node


class LruIndex(EvictionIndex):
    """Least recently used first, by the tree's logical clock.

    A node's `last_access` does not change while it is in here: only a lock touches a node, and a
    locked node is not in the index.
    """

    __slots__ = ("_by_age",)

    def __init__(self) -> None:
        self._by_age: SortedList[tuple[int, int, Node]] = SortedList()
        """(last_access, serial, leaf); serials differ, so that no two nodes are ever compared."""

    def __repr__(self) -> str:
        return f"<LruIndex {len(self._by_age)} leaves>"

    def add(self, leaf: Node) -> None:
        """Take in an unlocked leaf. Complexity: O(log n)."""
        self._by_age.add((leaf.last_access, leaf.serial, leaf))

    def remove(self, leaf: Node) -> None:
        """Forget a leaf. Complexity: O(log n)."""
        self._by_age.remove((leaf.last_access, leaf.serial, leaf))

    def first(self) -> Node | None:
        """Return the leaf that was used longest ago. Complexity: O(1)."""
        return self._by_age[0][2] if self._by_age else None

    def pop(self) -> Node:
        """Take out the leaf that was used longest ago. Complexity: O(1), amortised."""
        leaf: Node = self._by_age.pop(0)[2]
        return leaf

    def __iter__(self) -> Iterator[Node]:
        return (leaf for _, _, leaf in self._by_age)

    def __len__(self) -> int:
        return len(self._by_age)

    def check(self) -> None:
        """The ages in here grow, and are the leaves' own."""
        ages = [leaf.last_access for leaf in self]
        if ages != sorted(ages):
            raise InvariantError(5, f"the eviction index is out of order: {ages}")
