"""Ways through the nodes of a tree that change nothing."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from radixserve.core.node import Node
    from radixserve.core.prefix_match import PrefixMatch


def nodes_below(root: Node) -> Iterator[Node]:
    """All nodes below a root, parents before children. Complexity: O(nodes)."""
    stack = list(root.children or ())
    while stack:
        node = stack.pop()
        yield node
        if node.children is not None:
            stack.extend(node.children)


def blocks_down_to(end: Node | None) -> array[int]:
    """Return the blocks from the root to a node's end. Complexity: O(blocks)."""
    runs = []
    node = end
    while node is not None:
        runs.append(node.blocks)
        node = node.parent
    path = array("I")
    for run in reversed(runs):
        path.extend(run)
    return path


def num_unlocked_on(match: PrefixMatch, *, keep_tail: bool) -> int:
    """Return the blocks that a lock of `match` would take from the evictable ones.

    Args:
        keep_tail: Whether the tail's node is to be locked as well.
    Complexity: O(depth).
    """
    count = 0
    if match.node is not None and match.node.lock_ref == 0:
        count = match.node_blocks
    node = match.node.parent if match.node is not None else None
    while node is not None and node.lock_ref == 0:
        count += len(node.blocks)
        node = node.parent
    tail_node = match.tail.node if match.tail and keep_tail else None
    if tail_node is not None and tail_node.lock_ref == 0:
        inside = tail_node is match.node
        count += len(tail_node.blocks) - (match.node_blocks if inside else 0)
    return count
