"""Digests of what was evicted lately."""

from __future__ import annotations

from collections import OrderedDict

MAX_GHOSTS = 16_384


class GhostList:
    """The last so many digests, oldest forgotten first. A collision is a wrong guess, no more.

    Args:
        limit: How many are remembered.
    """

    def __init__(self, limit: int = MAX_GHOSTS) -> None:
        self._limit = limit
        self._digests: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._digests)

    def add(self, digest: int) -> None:
        """Remember a digest. Complexity: O(1)."""
        self._digests.pop(digest, None)
        self._digests[digest] = None
        if len(self._digests) > self._limit:
            self._digests.popitem(last=False)

    def recall(self, digest: int) -> bool:
        """Return whether the digest is remembered, and forget it."""
        if digest not in self._digests:
            return False
        del self._digests[digest]
        return True
