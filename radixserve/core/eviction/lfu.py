"""Least frequently used first, plain and with dynamic ageing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve.core.eviction.scored import ScoredIndex

if TYPE_CHECKING:
    from radixserve.core.node import Node


class LfuIndex(ScoredIndex):
    """Fewest uses first. What was popular once stays for ever: good for batches, bad for chats."""

    def score(self, leaf: Node) -> float:
        """Return the uses of the run since it was published."""
        return leaf.hits


class AgedLfuIndex(ScoredIndex):
    """LFU whose counts fade: a use is worth the more the later it is.

    The level rises to the score of each leaf that is given up; a path's score is the level at its
    last use plus its value.

    Source: LFU with dynamic ageing (Arlitt et al., SIGMETRICS PER 27(4), 2000).
    """

    def __init__(self) -> None:
        super().__init__()
        self._level = 0.0

    def value(self, leaf: Node) -> float:
        """Return what a leaf is worth without its age."""
        return leaf.hits

    def score(self, leaf: Node) -> float:
        """Return the level at the last use plus the value."""
        return leaf.use.level + self.value(leaf)

    def used(self, end: Node) -> None:
        """Note the level at a use; the path's nodes share it."""
        end.use.level = self._level

    def pop(self) -> Node:
        """Take out the leaf with the lowest score, which is the new level."""
        self._level = max(self._level, self._order[0][0])
        return super().pop()
