"""Why a Req would not be admitted now: each limit by itself, with the numbers.

SLOT     as many Reqs run as may
CHUNK    the prompts under way use up the tokens of a step
PREFIX   a running Req is computing a prefix of this one: it waits for that
MEMORY   the blocks it needs cannot be had, even by evicting
QUEUE    nothing of its own: others go first, or the next step has not come yet
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixserve.core.admission import has_room_for_prompt
from radixserve.core.preemption import queue_order

if TYPE_CHECKING:
    from radixserve.core.prefix_match import PrefixMatch
    from radixserve.core.scheduler import Scheduler


class Obstacle(enum.Enum):
    """What a Req waits for."""

    SLOT = "slot"
    CHUNK = "chunk"
    PREFIX = "prefix"
    MEMORY = "memory"
    QUEUE = "queue"


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Blocks that an admission takes, and where they could come from."""

    needed: int
    """New ones, beside those that are shared."""
    reserved: int
    """That must stay available for the growth of the running Reqs."""
    available: int
    """Free ones, and cached ones that could be evicted."""

    @property
    def is_met(self) -> bool:
        """Whether the blocks can be had now."""
        return self.needed + self.reserved <= self.available


def memory_need(scheduler: Scheduler, match: PrefixMatch, num_tokens: int) -> MemoryNeed:
    """Return what a Req of so many tokens takes, given what is cached of it.

    Args:
        match: As the tree is now.
    Complexity: O(depth + running Reqs).
    """
    cache = scheduler.cache
    return MemoryNeed(
        needed=cache.num_blocks_for(num_tokens) - match.matched_len // cache.block_size,
        reserved=scheduler.reserve_blocks,
        available=cache.pool.num_free + cache.tree.num_evictable_beside(match, keep_tail=False),
    )


def has_slot(scheduler: Scheduler) -> bool:
    """Return whether one more Req may run."""
    return len(scheduler.queues.running) < scheduler.config.max_num_seqs


def has_chunk(scheduler: Scheduler) -> bool:
    """Return whether a step has tokens left for one more prompt. Complexity: O(n log n)."""
    running = scheduler.queues.running.values()
    prefilling = sorted((req for req in running if not req.is_decoding), key=queue_order)
    budget = scheduler.config.max_num_batched_tokens - (len(running) - len(prefilling))
    chunk_len = scheduler.config.prefill_chunk_len or scheduler.config.max_num_batched_tokens
    return has_room_for_prompt([req.remaining_len for req in prefilling], budget, chunk_len)
