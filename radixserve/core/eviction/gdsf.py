"""Greedy dual: what is cheap to compute again goes first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve.core.eviction.lfu import AgedLfuIndex

if TYPE_CHECKING:
    from radixserve.core.node import Node

DOUBLING_LEN = 32_768
"""Depth in tokens at which attention doubles the cost of computing a block again."""


class GdsfIndex(AgedLfuIndex):
    """LFU with ageing, weighted by the cost of recomputing a block at its depth.

    The cost has a linear part, equal for all blocks, and an attention part that grows with the
    tokens above. A leaf's size cancels: twice the blocks cost twice as much and free twice as much.

    Args:
        doubling_len: Tokens of depth at which the two parts are equal.
    Source: GreedyDual-Size with frequency (Cherkasova, HPL-98-69R1, 1998).
    """

    def __init__(self, doubling_len: int = DOUBLING_LEN) -> None:
        super().__init__()
        self._doubling_len = doubling_len

    def value(self, leaf: Node) -> float:
        """Return uses times the cost of a block."""
        return leaf.hits * (1 + leaf.end_len / self._doubling_len)
