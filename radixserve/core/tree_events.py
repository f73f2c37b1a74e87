"""What happened to the tree's blocks, for somebody outside who keeps a copy of its shape.

A tree appends these to `RadixTree.events`, in order, while that is a list; without a listener it
is None and nothing is made. Blocks go by their ids: each is in one node at most, so whoever
follows can keep whatever it likes under an id, until `Removed` names it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.core.node import Node
    from radixserve.types import Namespace, PackedIds


@dataclass(frozen=True, slots=True)
class Stored:
    """A run of blocks was published."""

    namespace: Namespace
    parent: int | None
    """The block before the run; None where it begins a prompt."""
    key: PackedIds
    """The tokens of the run."""
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Removed:
    """Blocks have gone, and with them what their ids stood for."""

    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cleared:
    """All blocks of all namespaces have gone."""


TreeEvent: TypeAlias = Stored | Removed | Cleared


def stored_below(node: Node, key: PackedIds, blocks: Sequence[int]) -> Stored:
    """Return the event for blocks that are about to follow the end of `node`."""
    parent = node.blocks[-1] if node.blocks else None
    return Stored(node.namespace, parent, key, tuple(blocks))
