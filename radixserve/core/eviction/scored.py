"""Lowest score first, for any score that a leaf keeps while it can be evicted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sortedcontainers import SortedList

from radixserve.core.eviction.index import EvictionIndex
from radixserve.errors import InvariantError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from radixserve.core.node import Node


class ScoredIndex(EvictionIndex):
    """The leaf with the lowest score first; among equal ones the least recently used."""

    def __init__(self) -> None:
        self._order: SortedList[tuple[float, int, int, Node]] = SortedList()
        """(score, last_access, serial, leaf); serials differ, so that no nodes are compared."""
        self._entries: dict[Node, tuple[float, int, int, Node]] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self)} leaves>"

    def score(self, leaf: Node) -> float:
        """Return what a leaf is worth, when it is filed. Cheap: it is asked at every filing."""
        raise NotImplementedError

    def add(self, leaf: Node) -> None:
        """Take in an unlocked leaf. Complexity: O(log n)."""
        entry = (self.score(leaf), leaf.last_access, leaf.serial, leaf)
        self._entries[leaf] = entry
        self._order.add(entry)

    def remove(self, leaf: Node) -> None:
        """Forget a leaf. Complexity: O(log n)."""
        self._order.remove(self._entries.pop(leaf))

    def first(self) -> Node | None:
        """Return the leaf with the lowest score. Complexity: O(1)."""
        return self._order[0][3] if self._order else None

    def pop(self) -> Node:
        """Take out the leaf with the lowest score. Complexity: O(1), amortised."""
        leaf: Node = self._order.pop(0)[3]
        del self._entries[leaf]
        return leaf

    def __iter__(self) -> Iterator[Node]:
        return (leaf for _, _, _, leaf in self._order)

    def __len__(self) -> int:
        return len(self._order)

    def check(self) -> None:
        """The scores grow, and every leaf is filed under its own age."""
        entries = list(self._order)
        if entries != sorted(entries, key=lambda entry: entry[:3]):
            raise InvariantError(5, f"the eviction index is out of order: {entries}")
        if any(entry[1] != entry[3].last_access for entry in entries):
            raise InvariantError(5, f"a leaf was used while it could be evicted: {entries}")
