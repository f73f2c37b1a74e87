"""Any policy, with hints: what is cold goes first, what is held goes last.

    cold     a session ended, or its caller asked to keep less: least recently used first
    plain    the policy's own order
    held     pinned for a time, or waiting for a tool: lowest priority first, then shortest hold

A hold counts against a budget and lasts until its time has come. Beyond the budget, and after its
time, a leaf is plain. Held leaves can be evicted like all others, when nothing else is left.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from sortedcontainers import SortedList

from radixserve.core.eviction.hold_budget import HoldBudget
from radixserve.core.eviction.index import EvictionIndex
from radixserve.core.eviction.lru import LruIndex
from radixserve.errors import InvariantError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from radixserve.core.eviction.hints import Hold
    from radixserve.core.node import Node


class HintedIndex(EvictionIndex):
    """`plain`, with the leaves that hints marked before and after it.

    Args:
        plain: The order of all other leaves.
        max_held_blocks: Most blocks that holds may keep, with all that lies above them.
    """

    def __init__(self, plain: EvictionIndex, *, max_held_blocks: int) -> None:
        self.needs_digests = plain.needs_digests
        self.plain = plain
        self.budget: HoldBudget = HoldBudget(max_held_blocks)
        self._cold = LruIndex()
        self._held: SortedList[tuple[int, float, int, Node]] = SortedList()
        self._by_end: SortedList[tuple[float, int, Node]] = SortedList()
        self._marks: dict[Node, Hold] = {}
        """The leaves that are cold or held, with the mark under which they are filed."""
        self._now_s = 0.0

    def __repr__(self) -> str:
        return f"<HintedIndex {len(self._cold)} cold, {len(self._held)} held, {self.plain!r}>"

    # -- the set -------------------------------------------------------------------------------

    def add(self, leaf: Node) -> None:
        """Take in an unlocked leaf. Complexity: that of `plain`; a held one O(log n + depth)."""
        mark = leaf.hold
        if mark is None:
            self.plain.add(leaf)
        elif mark.is_cold:
            self._marks[leaf] = mark
            self._cold.add(leaf)
        elif mark.until_s > self._now_s and self.budget.try_hold(leaf):
            self._marks[leaf] = mark
            self._held.add((mark.priority, mark.until_s, leaf.serial, leaf))
            self._by_end.add((mark.until_s, leaf.serial, leaf))
        else:
            self.plain.add(leaf)

    def remove(self, leaf: Node) -> None:
        """Forget a leaf that is used again."""
        if not (self._marks and self._unmark(leaf)):
            self.plain.remove(leaf)

    def evicted(self, leaf: Node) -> None:
        """Forget a leaf that is given up."""
        if not (self._marks and self._unmark(leaf)):
            self.plain.evicted(leaf)

    def first(self) -> Node | None:
        """Return a cold leaf, else the policy's choice, else a held one. Complexity: O(1)."""
        if not self._marks:
            return self.plain.first()
        leaf = self._cold.first() or self.plain.first()
        if leaf is None and self._held:
            leaf = self._held[0][3]
        return leaf

    def pop(self) -> Node:
        """Take out the leaf that `first` returns."""
        if not self._marks or (not self._cold and len(self.plain)):
            return self.plain.pop()
        leaf = self.first()
        assert leaf is not None
        self._unmark(leaf)
        return leaf

    def remark(self, leaf: Node, hold: Hold | None) -> None:
        """File a leaf anew if its old mark held it. Complexity: that of `add`."""
        is_marked = self._unmark(leaf)
        leaf.hold = hold
        if is_marked:
            self.add(leaf)

    def held(self) -> Iterator[Node]:
        """The leaves that are held, the one that goes first among them first."""
        return (entry[3] for entry in self._held)

    def __iter__(self) -> Iterator[Node]:
        return chain(self._cold, self.plain, self.held())

    def __len__(self) -> int:
        return len(self._cold) + len(self.plain) + len(self._held)

    def check(self) -> None:
        """Each part is in order, marked as it is filed, and the holds keep to their budget."""
        self._cold.check()
        self.plain.check()
        marked = {*self._cold, *self.held()}
        if marked != self._marks.keys() or len(self._by_end) != len(self._held):
            raise InvariantError(5, f"{len(marked)} leaves are filed by {len(self._marks)} marks")
        if any(leaf.hold is not mark for leaf, mark in self._marks.items()):
            raise InvariantError(5, "a leaf's mark has changed while it could be evicted")
        if not 0 <= self.budget.num_blocks <= self.budget.max_blocks:
            raise InvariantError(5, f"holds exceed their budget: {self.budget!r}")

    # -- the news ------------------------------------------------------------------------------

    def born(self, node: Node) -> None:
        """Pass it on."""
        self.plain.born(node)

    def used(self, end: Node) -> None:
        """Pass it on."""
        self.plain.used(end)

    def split(self, upper: Node, lower: Node) -> None:
        """Pass it on; a held path stays counted."""
        self.budget.split(upper, lower)
        self.plain.split(upper, lower)

    def tick(self, now_s: float) -> None:
        """Let the holds whose time has come be plain. Complexity: O(1) without any."""
        self._now_s = now_s
        self.plain.tick(now_s)
        while self._by_end and self._by_end[0][0] <= now_s:
            leaf = self._by_end[0][2]
            self._unmark(leaf)
            self.plain.add(leaf)

    # -- inside --------------------------------------------------------------------------------

    def _unmark(self, leaf: Node) -> bool:
        """Take a leaf out of the cold or held ones; return whether it was one."""
        mark = self._marks.pop(leaf, None)
        if mark is None:
            return False
        if mark.is_cold:
            self._cold.remove(leaf)
        else:
            self._held.remove((mark.priority, mark.until_s, leaf.serial, leaf))
            self._by_end.remove((mark.until_s, leaf.serial, leaf))
            self.budget.let_go(leaf)
        return True
