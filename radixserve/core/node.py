"""A node of the radix tree and the sorted container of its children."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sortedcontainers import SortedDict

from radixserve.types import ID_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from radixserve.types import BlockId, Namespace


def common_prefix_bytes(a: bytes | bytearray, b: bytes | bytearray, b_start: int = 0) -> int:
    """Return how many bytes `a` and `b[b_start:]` share from their beginnings.

    Halves the range instead of walking it, so nearly all the work is memory compares.
    Complexity: O(shared bytes + log n).
    """
    low, high = 0, min(len(a), len(b) - b_start)
    if a[:high] == b[b_start : b_start + high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[b_start + low : b_start + middle]:
            low = middle
        else:
            high = middle
    return low


def common_prefix_len(a: bytes | bytearray, b: bytes | bytearray) -> int:
    """Return how many leading *tokens* two packed runs share."""
    return common_prefix_bytes(a, b) // ID_BYTES


class Children:
    """A node's children, keyed by the bytes of their first block and sorted by them.

    Sorted, because the child that shares the longest part of a *partial* block with some tokens is
    always a neighbour of the place where these tokens would be inserted.
    """

    __slots__ = ("_by_first_block",)

    def __init__(self) -> None:
        self._by_first_block: SortedDict[bytes, Node] = SortedDict()

    def __len__(self) -> int:
        return len(self._by_first_block)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._by_first_block.values())

    def exact(self, first_block: bytes) -> Node | None:
        """Return the child that begins with this whole block. Complexity: O(1)."""
        child: Node | None = self._by_first_block.get(first_block)
        return child

    def longest_partial(self, part: bytes) -> tuple[Node | None, int]:
        """Return the child sharing most leading tokens with `part`, and how many (0: None).

        Complexity: O(log n).
        """
        keys = self._by_first_block.keys()
        place = self._by_first_block.bisect_left(part)
        best, best_len = None, 0
        for first_block in keys[max(0, place - 1) : place + 1]:
            shared = common_prefix_len(first_block, part)
            if shared > best_len:
                best, best_len = self._by_first_block[first_block], shared
        return best, best_len

    def put(self, first_block: bytes, child: Node) -> None:
        """Add a child, or replace the one with the same first block. Complexity: O(log n)."""
        self._by_first_block[first_block] = child

    def remove(self, first_block: bytes) -> None:
        """Drop a child. Complexity: O(log n)."""
        del self._by_first_block[first_block]


class Node:
    """A run of whole blocks on the path from a namespace's root.

    `key` holds the run's packed tokens and `blocks` the block that stores each `block_size` of
    them. The root's run is empty. Written by `RadixTree` alone.
    """

    __slots__ = (
        "blocks",
        "children",
        "end_len",
        "key",
        "last_access",
        "lock_ref",
        "namespace",
        "parent",
        "serial",
    )

    def __init__(
        self,
        *,
        namespace: Namespace,
        parent: Node | None,
        key: bytes,
        blocks: list[BlockId],
        serial: int,
    ) -> None:
        self.namespace = namespace
        self.parent = parent
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

    def __repr__(self) -> str:
        return f"<Node ..{self.end_len} {len(self.blocks)} blocks lock_ref={self.lock_ref}>"

    @property
    def is_root(self) -> bool:
        """Whether this node stands for the empty prefix."""
        return self.parent is None

    def first_block(self, block_bytes: int) -> bytes:
        """Return the bytes under which the parent files this node."""
        return self.key[:block_bytes]
