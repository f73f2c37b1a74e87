"""A node's children: by first block, and sorted by it.

    by_first_block   { "ab": Node, "ac": Node, "cd": Node }       the truth
    chunks           [ ["aa", "ab", "ac"], ["cd"] ]               sorted; "aa" is stale

Removing a child touches the dict alone. To find its key among the sorted ones would cost a dozen
cache misses, and eviction, which removes whoever was used longest ago, always meets cold memory.
A stale key is skipped where it is met and swept away later: whenever they outnumber the children,
each `put` sweeps one chunk.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from radixserve.core.common_prefix import common_prefix_len

if TYPE_CHECKING:
    from collections.abc import Iterator

    from radixserve.core.node import Node

CHUNK_LEN = 512
"""A chunk that reaches twice this many keys is split."""


class Children:
    """The children of one node, keyed by the bytes of their first block.

    Sorted, because the child that shares the longest part of a *partial* block with some tokens is
    always a neighbour of the place where these tokens would be inserted.
    """

    __slots__ = ("_by_first_block", "_chunks", "_lasts", "_next_sweep", "_num_stale")

    def __init__(self) -> None:
        self._by_first_block: dict[bytes, Node] = {}
        self._chunks: list[list[bytes]] = []
        """Keys in ascending order, cut into runs; no run is empty."""
        self._lasts: list[bytes] = []
        """The last key of each chunk."""
        self._num_stale = 0
        self._next_sweep = 0

    def __len__(self) -> int:
        return len(self._by_first_block)

    def __iter__(self) -> Iterator[Node]:
        """The children in the order of their first blocks."""
        by_first_block = self._by_first_block
        for chunk in self._chunks:
            for key in chunk:
                if key in by_first_block:
                    yield by_first_block[key]

    def exact(self, first_block: bytes) -> Node | None:
        """Return the child that begins with this whole block. Complexity: O(1)."""
        return self._by_first_block.get(first_block)

    def longest_partial(self, part: bytes) -> tuple[Node | None, int]:
        """Return the child sharing most leading tokens with `part`, and how many (0: None).

        Complexity: O(log n), and O(1) amortised for the stale keys in between.
        """
        place = bisect_left(self._lasts, part)
        inside = bisect_left(self._chunks[place], part) if place < len(self._chunks) else 0
        best, best_len = None, 0
        for key in (self._live_before(place, inside), self._live_from(place, inside)):
            shared = common_prefix_len(key, part)
            if shared > best_len:
                best, best_len = self._by_first_block[key], shared
        return best, best_len

    def put(self, first_block: bytes, child: Node) -> None:
        """Add a child, or replace the one with the same first block. Complexity: O(log n)."""
        is_new = first_block not in self._by_first_block
        self._by_first_block[first_block] = child
        if is_new:
            self._add_key(first_block)
            if self._num_stale > len(self._by_first_block):
                self._sweep_next()

    def remove(self, first_block: bytes) -> None:
        """Drop a child. Complexity: O(1)."""
        del self._by_first_block[first_block]
        self._num_stale += 1

    # -- the sorted keys -----------------------------------------------------------------------

    def _live_before(self, place: int, inside: int) -> bytes:
        """Return the last live key before a position; empty if there is none."""
        while place >= 0:
            if place < len(self._chunks):
                for key in reversed(self._chunks[place][:inside]):
                    if key in self._by_first_block:
                        return key
            place -= 1
            inside = CHUNK_LEN * 2
        return b""

    def _live_from(self, place: int, inside: int) -> bytes:
        """Return the first live key from a position on; empty if there is none."""
        while place < len(self._chunks):
            for key in self._chunks[place][inside:]:
                if key in self._by_first_block:
                    return key
            place, inside = place + 1, 0
        return b""

    def _add_key(self, key: bytes) -> None:
        if not self._chunks:
            self._chunks.append([key])
            self._lasts.append(key)
            return
        place = min(bisect_left(self._lasts, key), len(self._chunks) - 1)
        chunk = self._chunks[place]
        inside = bisect_left(chunk, key)
        if inside < len(chunk) and chunk[inside] == key:
            self._num_stale -= 1  # it was removed and has come back
            return
        chunk.insert(inside, key)
        self._lasts[place] = chunk[-1]
        if len(chunk) >= 2 * CHUNK_LEN:
            self._split(place)

    def _split(self, place: int) -> None:
        chunk = self._chunks[place]
        self._chunks[place : place + 1] = [chunk[:CHUNK_LEN], chunk[CHUNK_LEN:]]
        self._lasts[place : place + 1] = [chunk[CHUNK_LEN - 1], chunk[-1]]

    def _sweep_next(self) -> None:
        """Drop the stale keys of one chunk. Complexity: O(CHUNK_LEN)."""
        place = self._next_sweep % len(self._chunks)
        chunk = self._chunks[place]
        live = [key for key in chunk if key in self._by_first_block]
        self._num_stale -= len(chunk) - len(live)
        if live:
            self._chunks[place], self._lasts[place] = live, live[-1]
            self._next_sweep = place + 1
        else:
            del self._chunks[place], self._lasts[place]
            self._next_sweep = place
