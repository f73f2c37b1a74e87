"""How much of the pool hints may hold, counted over whole paths."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from radixserve.core.node import Node


class HoldBudget:
    """Counts the blocks that held leaves keep: their own, and those above them, each once.

    Args:
        max_blocks: Beyond it nothing more is held.
    """

    def __init__(self, max_blocks: int) -> None:
        self.max_blocks = max_blocks
        self.num_blocks = 0
        self._charges: dict[Node, tuple[int, int]] = {}
        """Node -> (held leaves at or below it, blocks counted for it)."""

    def __repr__(self) -> str:
        return f"<HoldBudget {self.num_blocks} of {self.max_blocks} blocks>"

    def cost(self, end: Node, num_blocks: int | None = None) -> int:
        """Return the blocks that holding a path would add to the count.

        Args:
            end: Where the path ends.
            num_blocks: Leading blocks of `end` that the path has; all of them when None.
        Complexity: O(depth).
        """
        cost = sum(len(node.blocks) for node in _path(end) if node not in self._charges)
        if num_blocks is not None and end not in self._charges:
            cost -= len(end.blocks) - num_blocks
        return cost

    def try_hold(self, leaf: Node) -> bool:
        """Count a leaf's path, unless that is more than the budget. Complexity: O(depth)."""
        cost = self.cost(leaf)
        if self.num_blocks + cost > self.max_blocks:
            return False
        self.num_blocks += cost
        for node in _path(leaf):
            count, blocks = self._charges.get(node, (0, len(node.blocks)))
            self._charges[node] = (count + 1, blocks)
        return True

    def let_go(self, leaf: Node) -> None:
        """Take a leaf's path out of the count. Complexity: O(depth)."""
        for node in _path(leaf):
            count, blocks = self._charges.pop(node)
            if count > 1:
                self._charges[node] = (count - 1, blocks)
            else:
                self.num_blocks -= blocks

    def split(self, upper: Node, lower: Node) -> None:
        """Divide a node's count like its blocks."""
        if lower in self._charges:
            count, blocks = self._charges[lower]
            self._charges[upper] = (count, len(upper.blocks))
            self._charges[lower] = (count, blocks - len(upper.blocks))


def _path(leaf: Node) -> Iterator[Node]:
    node: Node | None = leaf
    while node is not None and not node.is_root:
        yield node
        node = node.parent
