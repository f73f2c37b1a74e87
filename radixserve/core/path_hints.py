"""What a hint does to the nodes of the path that it is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve.core.eviction.hints import COLD, Hold

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve.core.eviction import ReleaseHint
    from radixserve.core.node import Node

    Split = Callable[[Node, int], Node]


def take_hint(end: Node, hint: ReleaseHint, *, now_s: float, block_size: int, split: Split) -> None:
    """Mark what a hint says goes first, and hold what is left of the path.

    Args:
        end: Where the path ends; it must not be in the eviction index.
        split: Puts the first blocks of a node into a new parent of it.
    Mutates: the marks of the path, and its shape where a mark begins inside a node.
    """
    node = end
    if hint.cold_from is not None and end.children is None:
        first_block = -(-hint.cold_from // block_size)
        node = _chill(end, first_block, now_s=now_s, block_size=block_size, split=split)
    if hint.hold_s > 0 and not node.is_root:
        until_s = now_s + hint.hold_s
        held = node.hold
        if held is None or held.until_s < until_s:
            node.hold = Hold(until_s, hint.priority, held is not None and held.is_pinned)


def _chill(end: Node, first_block: int, *, now_s: float, block_size: int, split: Split) -> Node:
    """Let the end of a path go first, as far as it is nobody else's; return what is above.

    Args:
        first_block: Blocks from the root that are spared.
    """
    node = end
    while not node.is_root and node.lock_ref == 0 and node.num_branches <= 1:
        assert node.parent is not None
        start = node.end_len // block_size - len(node.blocks)
        is_held = node.hold is not None and (node.hold.is_pinned or node.hold.until_s > now_s)
        if is_held or start + len(node.blocks) <= first_block:
            break
        if start < first_block:
            split(node, first_block - start)
        node.hold = COLD
        node = node.parent
    return node
