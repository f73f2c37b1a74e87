"""One request at a time through the radix tree and the pool: what a policy hits at a capacity.

A request takes the longest cached prefix of its whole blocks and inserts the rest; then leaves are
trimmed until no more than the capacity is left. The running request may overshoot for a moment,
so that its own tail can be what goes: a policy may choose not to admit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixserve.core.block_pool import BlockPool
from radixserve.errors import ConfigError
from radixserve.replay.eviction_policy import hint_for, make_tree
from radixserve.replay.path_tree import ONE_MORE
from radixserve.replay.replay_order import ARRIVAL, ReplayOrder
from radixserve.types import ID_BYTES, Namespace

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve.replay.trace import Trace, TraceRequest


@dataclass(frozen=True, slots=True)
class CacheCounts:
    """What a cache did over a trace, in blocks."""

    hits: int
    inputs: int
    evicted_blocks: int

    @property
    def hit_rate(self) -> float:
        """Share of the whole input blocks that were cached, from 0 to 1."""
        return self.hits / self.inputs if self.inputs else 0.0


class SequentialCache:
    """A cache of some capacity that serves one request after the other.

    Args:
        capacity: Blocks that stay.
        overshoot: Blocks that one request may add before the cache is trimmed.
        ids_per_block: Ids that name a block.
        policy: Name of the eviction policy.
    Raises:
        ConfigError: no such policy, or no capacity.
    """

    def __init__(self, capacity: int, *, overshoot: int, ids_per_block: int, policy: str) -> None:
        if capacity < 1:
            raise ConfigError(f"a cache has at least 1 block; got {capacity}")
        self.tree = make_tree(policy, capacity=capacity, block_size=ids_per_block)
        self._pool = BlockPool(capacity + overshoot)
        self._capacity = capacity
        self._namespace = Namespace()
        self.hits = 0
        self.inputs = 0
        self.evicted_blocks = 0

    @property
    def num_held(self) -> int:
        """Blocks in the cache."""
        return self._pool.num_blocks - self._pool.num_free

    def serve(self, key: bytes, request: TraceRequest) -> int:
        """Use a request's whole blocks and return how many were cached.

        Mutates: tree and pool.
        Complexity: O(len(key)), O(depth) and O(log leaves) for each leaf given up.
        """
        tree = self.tree
        tree.tick(request.arrival_s)
        match = tree.match_prefix(key + ONE_MORE, self._namespace)
        handle = tree.lock(match)
        hits = match.matched_len // tree.block_size
        num_blocks = len(key) // (tree.block_size * ID_BYTES)
        fresh = self._pool.allocate(num_blocks - hits)
        assert fresh is not None, "a path is no longer than the overshoot"
        tree.extend(handle, key[match.matched_len * ID_BYTES :], fresh)
        tree.unlock(handle, hint_for(request))
        self._trim()
        self.hits += hits
        self.inputs += num_blocks
        return hits

    def _trim(self) -> None:
        surplus = self.num_held - self._capacity
        if surplus > 0:
            freed = self.tree.evict(surplus)
            self._pool.free(freed)
            self.evicted_blocks += len(freed)


def replay_sequentially(
    trace: Trace,
    capacity: int,
    policy: str,
    *,
    order: str = ARRIVAL,
    window: int | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> CacheCounts:
    """Return what a cache of `capacity` blocks hits under a policy.

    Args:
        order, window: See `ReplayOrder`.
        advance: Told of each request.
    Raises:
        ConfigError: there is no such policy or order.
    """
    cache = SequentialCache(
        capacity,
        overshoot=trace.longest_path_blocks,
        ids_per_block=trace.ids_per_block,
        policy=policy,
    )
    for request in ReplayOrder(trace, order, window, cache.tree):
        key = trace.full_path(request)
        if key:
            cache.serve(key, request)
        advance(1)
    return CacheCounts(cache.hits, cache.inputs, cache.evicted_blocks)
