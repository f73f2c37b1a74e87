"""Who enters a step and with how many tokens: the pure parts of the decision.

One step has a token budget. Decodes take one token each and come first; the rest is for prompts.
Several prompts may be under way, and two things must hold at once: the oldest must not starve, and
a short one must not wait until a long one is through. So half of the rest is the oldest prompt's,
and the other half goes to the others, shortest first; what one half does not need the other gets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve.core.common_prefix import common_prefix_len
from radixserve.core.preemption import queue_order
from radixserve.core.prefix_cache import PrivateTail
from radixserve.core.req import ReqState
from radixserve.types import ID_BYTES, BlockId

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from radixserve.core.prefix_match import PrefixMatch
    from radixserve.core.req import Req

MIN_GROWTH_TOKENS = 64
MAX_GROWTH_TOKENS = 4096
CALM_STEPS = 64
"""Steps without a preemption after which the reserve is halved."""


def share_prefill_budget(remaining: Sequence[int], budget: int, chunk_len: int) -> list[int]:
    """Divide `budget` tokens among prompts under way.

    Args:
        remaining: Tokens each prompt still has to compute, oldest first.
        budget: Tokens to give away.
        chunk_len: Most tokens for one prompt.
    Returns: tokens for each prompt, 0 for those that have to sit this step out. The oldest gets
        at least half of the budget if it can use that much.
    Complexity: O(n log n).
    """
    shares = [0] * len(remaining)
    if not remaining or budget <= 0:
        return shares
    shares[0] = min(remaining[0], chunk_len, -(-budget // 2))
    left = budget - shares[0]
    for i in sorted(range(1, len(remaining)), key=remaining.__getitem__):
        shares[i] = min(remaining[i], chunk_len, left)
        left -= shares[i]
    shares[0] += min(remaining[0] - shares[0], chunk_len - shares[0], left)
    return shares


def has_room_for_prompt(remaining: Sequence[int], budget: int, chunk_len: int) -> bool:
    """Return whether one more prompt would get a token of the budget. Arguments as above."""
    if not remaining:
        return budget > 0
    oldest = min(remaining[0], chunk_len, -(-budget // 2))
    return oldest + sum(min(length, chunk_len) for length in remaining[1:]) < budget


class GrowthReserve:
    """Output tokens that admission leaves room for, for each running Req.

    Without any room, a newcomer is admitted into blocks that the running ones need a few steps
    later, and is preempted again. How much is right depends on the load, so it is learnt: doubled
    by each preemption, halved after a while without one, down to where it began.
    """

    __slots__ = ("_calm_steps", "tokens")

    def __init__(self) -> None:
        self.tokens = MIN_GROWTH_TOKENS
        self._calm_steps = 0

    def __repr__(self) -> str:
        return f"<GrowthReserve {self.tokens} tokens a Req>"

    def step_passed(self, *, has_preempted: bool) -> None:
        """Learn from a step that has been planned."""
        self._calm_steps = 0 if has_preempted else self._calm_steps + 1
        if has_preempted:
            self.tokens = min(2 * self.tokens, MAX_GROWTH_TOKENS)
        elif self._calm_steps % CALM_STEPS == 0:
            self.tokens = max(self.tokens // 2, MIN_GROWTH_TOKENS)


def growth_blocks(running: Iterable[Req], block_size: int, growth_tokens: int) -> int:
    """Return the blocks that running Reqs will want soon, beyond those they hold.

    Args:
        growth_tokens: Output tokens that each of them is expected to add.
    """
    blocks = 0
    for req in running:
        if req.lease is None:
            continue
        soon = min(req.total_len + growth_tokens, req.max_total_len - 1)
        blocks += max(0, -(-soon // block_size) - len(req.lease.table))
    return blocks


def never_fits(
    prompt_len: int, max_tokens: int, *, max_model_len: int, num_blocks: int, block_size: int
) -> str | None:
    """Return why a Req of this size could not end even if it were alone; None if it could.

    The last output token needs no KV: nothing comes after it.
    """
    total = prompt_len + max_tokens
    if total > max_model_len:
        return (
            f"the prompt has {prompt_len} tokens and max_tokens is {max_tokens}: together "
            f"{total}, but the context holds {max_model_len}"
        )
    if total - 1 > num_blocks * block_size:
        return (
            f"the prompt has {prompt_len} tokens and max_tokens is {max_tokens}: the KV pool "
            f"holds {num_blocks * block_size} tokens ({num_blocks} blocks of {block_size})"
        )
    return None


def lowest_below(running: Iterable[Req], priority: int) -> Req | None:
    """Return the running Req that gives way first to one of a strictly higher `priority`.

    The lowest class, in it the youngest; None if nobody is below. Who has been preempted before
    does not give way again: so everybody ends, whatever keeps arriving above.
    """
    below = (req for req in running if req.spec.priority < priority and not req.num_preemptions)
    return max(below, key=queue_order, default=None)


def shared_span(req: Req, other: Req) -> int:
    """Return the leading tokens of `req` that `other` computes too and that it may take over.

    Complexity: O(1) where the first tokens differ, else O(shared bytes).
    """
    if (
        req.tokens[:ID_BYTES] != other.tokens[:ID_BYTES]
        or req.spec.namespace != other.spec.namespace
    ):
        return 0
    return min(common_prefix_len(req.tokens, other.tokens), req.reusable_len)


def find_leader(
    req: Req, cached_len: int, prefilling: Iterable[Req], *, min_gain: int
) -> tuple[Req, int] | None:
    """Return the Req worth waiting for, and the span to wait for.

    A leader is computing tokens right now that `req` would otherwise compute once more. Waiting
    must save `min_gain` tokens over what is cached already.
    """
    best, best_span = None, cached_len + min_gain - 1
    for other in prefilling:
        span = shared_span(req, other)
        if span > best_span and other.computed_len < span:
            best, best_span = other, span
    return (best, best_span) if best is not None else None


def is_held_back(req: Req) -> bool:
    """Whether the leader of `req` has still to compute a part of their common span."""
    leader = req.leader
    return (
        leader is not None
        and leader.state is ReqState.RUNNING
        and leader.computed_len < req.leader_span
    )


def best_private_tail(
    req: Req, match: PrefixMatch, sources: Iterable[Req], *, block_size: int
) -> PrivateTail | None:
    """Return the longest continuation of `match` in a partly filled block of a running Req.

    Complexity: O(sources * shared bytes).
    """
    best = None
    place = match.matched_len // block_size
    for source in sources:
        lease = source.lease
        if lease is None or not lease.num_shared <= place < len(lease.table):
            continue
        num_tokens = min(shared_span(req, source), source.computed_len) - match.matched_len
        if num_tokens > (best.num_tokens if best else 0):
            best = PrivateTail(BlockId(lease.table[place]), num_tokens)
    return best
