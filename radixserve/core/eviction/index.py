"""The interface between the tree and the order in which it gives up its leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from radixserve.core.eviction.hints import Hold
    from radixserve.core.eviction.hold_budget import HoldBudget
    from radixserve.core.node import Node


class EvictionIndex(Protocol):
    """The unlocked leaves, in the order in which they should be given up.

    `add`, `remove` and `pop` keep the set; the others are news, and do nothing unless a policy
    overrides them. What a policy may read of a node in here does not change meanwhile, but for a
    leaf's length: only locks and uses touch a node, and a locked node is not in here.
    """

    needs_digests: bool = False
    """Whether the tree is to keep `Node.digest`, which costs a checksum of all that is inserted."""

    budget: HoldBudget | None = None
    """What holds may keep; None where the order knows of none."""

    def add(self, leaf: Node) -> None:
        """Take in a node that has just become an unlocked leaf."""

    def remove(self, leaf: Node) -> None:
        """Forget a node that is no longer an unlocked leaf: it is used again."""

    def first(self) -> Node | None:
        """Return the leaf to give up next, None if there is none. Keeps the set as it is."""

    def pop(self) -> Node:
        """Take out and return the leaf that `first` would return, for ever; there must be one."""

    def evicted(self, leaf: Node) -> None:
        """Forget a leaf that is given up for ever without having been `first`."""
        self.remove(leaf)

    def remark(self, leaf: Node, hold: Hold | None) -> None:
        """Give a leaf in here a mark that holds it for a shorter time, or none."""
        leaf.hold = hold

    def __iter__(self) -> Iterator[Node]:
        """All the leaves, in order."""

    def __len__(self) -> int:
        """How many leaves there are."""

    def check(self) -> None:
        """Raise InvariantError (5) if the order is not what the policy promises. O(n)."""

    def born(self, node: Node) -> None:
        """Hear of a node whose run the tree did not have until now."""
        return

    def used(self, end: Node) -> None:
        """Hear that a path was used, down to `end`; its nodes have their new ages and hits."""
        return

    def split(self, upper: Node, lower: Node) -> None:
        """Hear that `lower`'s first blocks were put into `upper`, a new parent of it."""
        return

    def tick(self, now_s: float) -> None:
        """Hear the time, in seconds on any clock that only grows. Never needed for liveness."""
        return
