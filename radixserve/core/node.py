"""A node of the radix tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve.core.eviction.hints import NEVER
from radixserve.types import ID_BYTES

if TYPE_CHECKING:
    from array import array

    from radixserve.core.children import Children
    from radixserve.core.eviction.hints import Hold
    from radixserve.types import Namespace


class Node:
    """A run of whole blocks on the path from a namespace's root.

    `key` holds the run's packed tokens and `blocks` the block that stores each `block_size` of
    them, both without an object an element: a large tree is millions of them. The root's run is
    empty. Written by `RadixTree` alone.
    """

    __slots__ = (
        "blocks",
        "born_at",
        "children",
        "digest",
        "end_len",
        "hits",
        "hold",
        "key",
        "last_access",
        "lock_ref",
        "namespace",
        "num_branches",
        "num_cached",
        "parent",
        "root",
        "serial",
        "use",
    )

    def __init__(
        self,
        *,
        namespace: Namespace,
        parent: Node | None,
        key: bytes,
        blocks: array[int],
        serial: int,
    ) -> None:
        self.namespace = namespace
        self.parent = parent
        self.root: Node = parent.root if parent else self
        self.key = key
        self.blocks = blocks
        self.serial = serial
        self.end_len: int = (parent.end_len if parent else 0) + len(key) // ID_BYTES
        """Tokens from the root to the end of this run."""
        self.lock_ref = 0
        """Live handles at or below this node."""
        self.last_access: int = parent.last_access if parent else 0
        self.children: Children | None = None
        """None in a leaf: most nodes are leaves, and a sorted container is not small."""
        self.born_at = 0
        """The tree's clock when the beginning of this run was published."""
        self.hits = 0
        """Uses of this run that have ended, the one that published its beginning included."""
        self.num_branches = 0
        """Children it was ever given: from 2 on, different Reqs have shared it."""
        self.num_cached = 0
        """In a root: blocks of all nodes below it."""
        self.use = NEVER
        """The last use that has ended."""
        self.hold: Hold | None = None
        """A hint's mark."""
        self.digest = 0
        """Checksum of the path above this run, 0 unless the eviction order asks for digests."""

    def __repr__(self) -> str:
        return f"<Node ..{self.end_len} {len(self.blocks)} blocks lock_ref={self.lock_ref}>"

    @property
    def is_root(self) -> bool:
        """Whether this node stands for the empty prefix."""
        return self.parent is None

    def first_block(self, block_bytes: int) -> bytes:
        """Return the bytes under which the parent files this node."""
        return self.key[:block_bytes]
