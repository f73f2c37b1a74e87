"""What can be seen of a scheduler from outside: counters that grow and frozen snapshots."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Events since the start. Written by the scheduler and its step builder.

    Prompt and cached tokens are counted at a Req's first admission, so that a preempted Req that
    finds its own blocks again does not count as a hit (vllm #25780).
    """

    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0
    recomputed_tokens: int = 0
    """Tokens that had been computed before a preemption and were computed again."""


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

    @property
    def kv_usage(self) -> float:
        """Share of the pool that running Reqs hold, from 0 to 1."""
        return (self.private_blocks + self.protected_blocks) / self.num_blocks
