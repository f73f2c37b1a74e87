"""A block pool of which some allocations, chosen by the test, do not succeed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve.core.block_pool import BlockPool

if TYPE_CHECKING:
    from radixserve.types import BlockId


class FaultyPool(BlockPool):
    """A real pool that can be told to answer "nothing left", whatever it has."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.num_calls = 0
        self.num_failures = 0
        """Allocations that failed because the test wanted it."""
        self._failing_call = 0

    def arm(self, calls: int) -> None:
        """Let the `calls`-th allocation from now fail, and only that."""
        self._failing_call = self.num_calls + calls

    def disarm(self) -> None:
        """Let all allocations from now on succeed if they can."""
        self._failing_call = 0

    def allocate(self, count: int) -> list[BlockId] | None:
        """As a real pool, except for the one call."""
        self.num_calls += 1
        if self.num_calls == self._failing_call:
            self.num_failures += 1
            return None
        return super().allocate(count)
