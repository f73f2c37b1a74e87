"""What can be seen of a scheduler from outside: counters that grow and frozen snapshots."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from radixserve.core.namespace_hits import NamespaceHits

if TYPE_CHECKING:
    from radixserve.core.scheduler import Scheduler


@dataclass(slots=True)
class Counters:
    """Events since the start. Written by the scheduler and its step builder.

    Prompt and cached tokens are counted at a Req's first admission, so that a preempted Req that
    finds its own blocks again does not count as a hit (vllm #25780).
    """

    steps: int = 0
    steps_ahead: int = 0
    """Steps that were planned before the result of the one before was known."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0
    recomputed_tokens: int = 0
    """Tokens that had been computed before a preemption and were computed again."""
    namespaces: NamespaceHits = field(default_factory=NamespaceHits)
    """Prompt and cached tokens again, by namespace."""


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """One moment of a scheduler; lengths in tokens, the pool in blocks."""

    num_waiting: int
    num_running: int
    num_blocks: int
    block_size: int
    free_blocks: int
    private_blocks: int
    evictable_blocks: int
    protected_blocks: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    preemptions: int
    evicted_blocks: int
    swapped_out_blocks: int
    swapped_in_blocks: int
    recomputed_tokens: int
    host_blocks: int
    free_host_blocks: int
    steps: int
    steps_ahead: int

    @property
    def kv_usage(self) -> float:
        """Share of the pool that running Reqs hold, from 0 to 1."""
        return (self.private_blocks + self.protected_blocks) / self.num_blocks


def take_stats(scheduler: Scheduler) -> SchedulerStats:
    """Return a scheduler's counters and gauges as they are now."""
    cache, counters, space = scheduler.cache, scheduler.counters, scheduler.swap_space
    queues = scheduler.queues
    tree = cache.tree
    return SchedulerStats(
        num_waiting=scheduler.num_queued,
        num_running=len(queues.running),
        num_blocks=cache.pool.num_blocks,
        block_size=cache.block_size,
        free_blocks=cache.pool.num_free,
        private_blocks=cache.num_private_blocks,
        evictable_blocks=tree.num_evictable_blocks,
        protected_blocks=tree.num_protected_blocks,
        prompt_tokens=counters.prompt_tokens,
        cached_tokens=counters.cached_tokens,
        output_tokens=counters.output_tokens,
        preemptions=counters.preemptions,
        evicted_blocks=cache.num_evicted_blocks,
        swapped_out_blocks=counters.swapped_out_blocks,
        swapped_in_blocks=counters.swapped_in_blocks,
        recomputed_tokens=counters.recomputed_tokens,
        host_blocks=space.pool.num_blocks,
        free_host_blocks=space.pool.num_free,
        steps=counters.steps,
        steps_ahead=counters.steps_ahead,
    )
