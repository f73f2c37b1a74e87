"""All the paths of a trace as one tree, cut so finely that a request uses a node whole or not.

    requests  1 2 3 4      nodes   [1 2] -+- [3] - [4]        ends: [4], [5 6], [3]
              1 2 5 6                     `- [5 6]
              1 2 3

All the blocks of a node are used at the same times, so that what is true of one is true of all.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixserve.core.radix_tree import RadixTree
from radixserve.types import ID_BYTES, MAX_ID, BlockId, Namespace, pack_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from radixserve.core.node import Node
    from radixserve.replay.trace import Trace
    from radixserve.types import PackedIds

ONE_MORE = pack_ids((MAX_ID,))
"""A match leaves one token over; this is the one."""

ROOT = 0


@dataclass(frozen=True)
class PathTree:
    """Nodes by number; 0 is the root, which has no blocks."""

    parents: array[int]
    sizes: array[int]
    """Blocks of each node."""
    ends: array[int]
    """For each request that has a full block, in order: the node in which its path ends."""

    @property
    def num_blocks(self) -> int:
        """Distinct blocks of the trace."""
        return sum(self.sizes)

    def path(self, end: int) -> Iterator[int]:
        """Yield the nodes from `end` up to the root, which is left out."""
        node = end
        while node != ROOT:
            yield node
            node = self.parents[node]


def grow_path_tree(trace: Trace, advance: Callable[[int], None] = lambda _: None) -> PathTree:
    """Return the tree of all the whole blocks of a trace.

    Args:
        advance: Told of each request that has been taken in.
    Complexity: O(ids of the trace), and O(depth) a request.
    """
    tree, namespace = RadixTree(trace.ids_per_block), Namespace()
    keys = [key for key in map(trace.full_path, trace.requests) if key]
    for key in keys:
        _insert(tree, key, namespace)
        advance(1)
    # Inserting may have let a leaf grow beyond the end of an earlier path: cut it there.
    return _number_nodes(tree, [_cut_end(tree, key, namespace) for key in keys])


def _insert(tree: RadixTree, key: PackedIds, namespace: Namespace) -> None:
    match = tree.match_prefix(key + ONE_MORE, namespace)
    handle = tree.lock(match)
    rest = key[match.matched_len * ID_BYTES :]
    num_blocks = len(rest) // (tree.block_size * ID_BYTES)
    tree.extend(handle, rest, [BlockId(0)] * num_blocks)
    tree.unlock(handle)


def _cut_end(tree: RadixTree, key: PackedIds, namespace: Namespace) -> Node:
    """Return the node in which a path ends; later cuts leave its end where it is."""
    handle = tree.lock(tree.match_prefix(key + ONE_MORE, namespace))
    node = handle.node
    assert node is not None
    tree.unlock(handle)
    return node


def _number_nodes(tree: RadixTree, ends: list[Node]) -> PathTree:
    numbers: dict[int, int] = {}
    parents, sizes = array("I"), array("I")
    for number, node in enumerate(tree.nodes()):
        numbers[node.serial] = number
        parents.append(numbers[node.parent.serial] if node.parent else ROOT)
        sizes.append(len(node.blocks))
    return PathTree(parents, sizes, array("I", [numbers[node.serial] for node in ends]))
