"""Eviction policies by name, and what a trace can tell them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve.core.eviction import NO_HINT, Ending, ReleaseHint
from radixserve.core.eviction.names import POLICY_NAMES, find_eviction_policy
from radixserve.core.radix_tree import RadixTree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.replay.trace import TraceRequest

ALL = "all"

HINTS = {
    "tool_use": ReleaseHint(ending=Ending.TOOL),
    "end_turn": ReleaseHint(ending=Ending.TURN),
}
"""Stop reason of a trace -> what the tree is told when the request lets go of its path."""


def make_tree(policy: str, *, capacity: int, block_size: int) -> RadixTree:
    """Return an empty tree that evicts by the policy of that name.

    Args:
        capacity: Blocks that it will hold.
        block_size: Ids a block.
    Raises:
        ConfigError: there is no such policy.
    """
    maker = find_eviction_policy(policy, num_blocks=capacity, block_size=block_size)
    return RadixTree(block_size, maker)


def named_policies(names: Sequence[str]) -> tuple[str, ...]:
    """Return the policies that are meant, each once; `all` stands for every one.

    Raises:
        ConfigError: there is no such policy.
    """
    expanded = [each for name in names for each in (POLICY_NAMES if name == ALL else (name,))]
    for name in expanded:
        find_eviction_policy(name, num_blocks=1, block_size=1)
    return tuple(dict.fromkeys(expanded))


def hint_for(request: TraceRequest) -> ReleaseHint:
    """Return what the server would know when this request has been answered."""
    return HINTS.get(request.stop, NO_HINT)
