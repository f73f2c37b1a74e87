"""First in, first out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve.core.eviction.scored import ScoredIndex

if TYPE_CHECKING:
    from radixserve.core.node import Node


class FifoIndex(ScoredIndex):
    """The run that was published first goes first, however often it was used.

    Close to LRU on a tree: a shared prefix is no leaf while anything below it lives.
    """

    def score(self, leaf: Node) -> float:
        """Return when the run was published."""
        return leaf.born_at
