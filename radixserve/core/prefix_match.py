"""What the radix tree answers with: matches, handles and the result of an insertion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from radixserve.core.node import Node
    from radixserve.types import BlockId, Namespace


@dataclass(frozen=True, slots=True)
class TailMatch:
    """Tokens that agree with the beginning of a cached block, but not with all of it."""

    node: Node
    block: BlockId
    num_tokens: int


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The longest cached prefix of some tokens, as it stands at `version` of the tree."""

    namespace: Namespace
    node: Node | None
    """Where the match ends; None if the namespace has no tree."""
    node_blocks: int
    """Blocks of `node` that belong to the match; fewer than it has where the match ends inside."""
    matched_len: int
    """Tokens in whole blocks."""
    tail: TailMatch | None
    version: int

    @property
    def total_len(self) -> int:
        """Tokens whose KV need not be computed: whole blocks and the tail."""
        return self.matched_len + (self.tail.num_tokens if self.tail else 0)


class PrefixHandle:
    """A lock on the path from the root to the end of `node`; given out and taken back by the tree.

    The tree moves a handle deeper when its owner publishes more blocks.
    """

    __slots__ = ("node",)

    def __init__(self, node: Node) -> None:
        self.node: Node | None = node

    def __repr__(self) -> str:
        return f"<PrefixHandle {self.node}>"


@dataclass(frozen=True, slots=True)
class InsertResult:
    """What became of published blocks."""

    blocks: list[BlockId]
    """The canonical block of each published span, in order."""
    duplicates: list[BlockId]
    """Those of the caller's blocks that the tree did not need: the caller owns them again."""
