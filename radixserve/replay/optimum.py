"""The most block hits that any order of eviction could have had: Belady's rule on leaves.

A cache holds a prefix-closed set of blocks. A request hits the longest part of its path that is
there; then its whole path is. While there are more than C blocks, the leaf block whose next use is
farthest goes, never counting as farthest; the path just inserted is not spared. A block is never
used before its parent, so a farthest block is always among the leaves and this is Belady's rule
over single blocks, which is optimal.

All the blocks of a node of the `PathTree` have the same next use, so the program keeps, for each
node, how many of its leading blocks are there.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from radixserve.replay.path_tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve.replay.path_tree import PathTree


@dataclass(frozen=True, slots=True)
class Optimum:
    """What the optimum does at one capacity, in blocks."""

    capacity: int
    hits: int
    evicted_blocks: int


class OptimalCache:
    """Replays a tree of paths under the optimal order of eviction.

    Args:
        tree: Of the whole trace: the future is known.
    Complexity: O(nodes on all paths) for the next uses, which all capacities share.
    """

    def __init__(self, tree: PathTree) -> None:
        self._tree = tree
        self._next_uses = _next_uses(tree)

    def replay(self, capacity: int, advance: Callable[[int], None] = lambda _: None) -> Optimum:
        """Return the hits at a capacity in blocks.

        Args:
            advance: Told of each request.
        Complexity: O(nodes on all paths), O(log leaves) for each leaf that comes or goes.
        """
        state = _Leaves(self._tree, capacity)
        visit = 0
        for end in self._tree.ends:
            visit = state.use(end, self._next_uses, visit)
            state.shrink()
            advance(1)
        return Optimum(capacity, state.hits, state.evicted_blocks)


def _next_uses(tree: PathTree) -> array[int]:
    """Return, for each request and node on its path, bottom up, when the node is used again."""
    never = len(tree.ends)
    coming = array("I", [never]) * len(tree.sizes)
    backwards = array("I")
    for time in range(never - 1, -1, -1):
        for node in reversed(list(tree.path(tree.ends[time]))):
            backwards.append(coming[node])
            coming[node] = time
    backwards.reverse()
    return backwards


class _Leaves:
    """The cache: leading blocks held of each node, and the leaves by next use."""

    def __init__(self, tree: PathTree, capacity: int) -> None:
        num_nodes = len(tree.sizes)
        self._parents = tree.parents.tolist()
        self._sizes = tree.sizes.tolist()
        self._held = [0] * num_nodes
        self._num_children = [0] * num_nodes
        """Children of which at least one block is held."""
        self._next_use = [0] * num_nodes
        self._farthest: list[tuple[int, int]] = []
        """Heap of (negated next use, node); an entry is stale once its node has another next use
        or is no longer a leaf."""
        self._room = capacity
        self.hits = 0
        self.evicted_blocks = 0

    def use(self, end: int, next_uses: array[int], visit: int) -> int:
        """Hit and insert a path; return the place of the next path's first next use."""
        held, sizes, parents = self._held, self._sizes, self._parents
        node = end
        while node != ROOT:
            size, present = sizes[node], held[node]
            self.hits += present
            self._next_use[node] = next_uses[visit]
            visit += 1
            if present < size:
                held[node] = size
                self._room -= size - present
                if not present:
                    self._num_children[parents[node]] += 1
            node = parents[node]
        self._offer(end)
        return visit

    def shrink(self) -> None:
        """Evict until there are no more blocks than the capacity."""
        while self._room < 0:
            negated, node = self._farthest[0]
            if self._num_children[node] or not self._held[node] or -negated != self._next_use[node]:
                heappop(self._farthest)
                continue
            count = min(self._held[node], -self._room)
            self._held[node] -= count
            self._room += count
            self.evicted_blocks += count
            if not self._held[node]:
                heappop(self._farthest)
                parent = self._parents[node]
                self._num_children[parent] -= 1
                self._offer(parent)

    def _offer(self, node: int) -> None:
        if not self._num_children[node] and node != ROOT:
            heappush(self._farthest, (-self._next_use[node], node))
