"""How one step is put together: decodes, then admissions, then the prompts under way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from radixserve.core.admission import (
    best_private_tail,
    find_leader,
    growth_blocks,
    has_room_for_prompt,
    is_held_back,
    share_prefill_budget,
)
from radixserve.core.plan import BlockCopy, SamplingState, ScheduledReq, StepPlan
from radixserve.core.preemption import choose_victim, queue_order
from radixserve.core.req import Req, ReqState
from radixserve.errors import InvariantError
from radixserve.types import ID_BYTES

if TYPE_CHECKING:
    from radixserve.config import SchedulerConfig
    from radixserve.core.policy import QueuePolicy
    from radixserve.core.prefix_cache import PrefixCache, PrivateTail
    from radixserve.core.prefix_match import PrefixMatch
    from radixserve.core.queues import Queues
    from radixserve.core.stats import Counters


@dataclass(slots=True)
class _Draft:
    """A step while it is being decided."""

    shares: dict[Req, int] = field(default_factory=dict)
    """Tokens each Req computes."""
    copies: list[BlockCopy] = field(default_factory=list)
    admitted: set[Req] = field(default_factory=set)
    has_preempted: bool = False


class StepBuilder:
    """Turns the queues and the cache into the next step. Has no state of its own.

    Args:
        queues: Moved between by admission and preemption.
        cache: Asked for blocks.
        config: Budgets.
        policy: Order in which waiting Reqs are considered.
        counters: Told of admissions and preemptions.
    """

    def __init__(
        self,
        queues: Queues,
        cache: PrefixCache,
        config: SchedulerConfig,
        policy: QueuePolicy,
        counters: Counters,
    ) -> None:
        self._queues = queues
        self._cache = cache
        self._config = config
        self._policy = policy
        self._counters = counters
        self._chunk_len = config.prefill_chunk_len or config.max_num_batched_tokens

    def build(self, now: float) -> StepPlan:
        """Decide who computes how much, and take the blocks for it.

        Mutates: queues, cache, counters.
        """
        draft = _Draft()
        self._schedule_decodes(draft)
        if not draft.has_preempted:
            self._admit(draft, now)
        self._schedule_prefills(draft)
        return self._seal(draft)

    # -- decodes -------------------------------------------------------------------------------

    def _schedule_decodes(self, draft: _Draft) -> None:
        """Every Req that needs one token gets it; when blocks run out, somebody gives way."""
        for req in list(self._queues.running.values()):
            if req.state is ReqState.RUNNING and req.remaining_len == 1:
                self._make_room(req, draft)
                if req.state is ReqState.RUNNING:
                    draft.shares[req] = 1

    def _make_room(self, req: Req, draft: _Draft) -> None:
        """Give `req` the block for its next token, preempting others or, at worst, itself."""
        assert req.lease is not None
        while not self._cache.extend(req.lease, req.total_len):
            running = list(self._queues.running.values())
            victim = choose_victim(running, block_size=self._cache.block_size)
            if victim is None:
                raise InvariantError(2, f"{req!r} is alone and does not fit in {self._cache!r}")
            self._preempt(victim, draft)
            if victim is req:
                return

    def _preempt(self, req: Req, draft: _Draft) -> None:
        """Take a running Req's blocks; it goes back to its old place in the queue.

        All its full blocks are in the tree already, so that it resumes by an ordinary match.
        """
        assert req.lease is not None
        self._cache.release(req.lease)
        req.lease = None
        req.computed_len = 0
        req.num_preemptions += 1
        self._queues.preempt(req)
        self._counters.preemptions += 1
        draft.shares.pop(req, None)
        draft.has_preempted = True

    # -- admissions ----------------------------------------------------------------------------

    def _admit(self, draft: _Draft, now: float) -> None:
        """Move Reqs from the queue into the step, in the policy's order, while there is room."""
        running = self._queues.running
        prefilling = sorted(
            (req for req in running.values() if req not in draft.shares), key=queue_order
        )
        if not self._has_seat(draft, prefilling):
            return
        reserve = growth_blocks(running.values(), self._cache.block_size)
        for req in self._ordered(now):
            if is_held_back(req) or self._follows(req, prefilling, draft):
                continue
            if not self._try_admit(req, draft, reserve=reserve if running else 0):
                return
            prefilling.append(req)
            if not self._has_seat(draft, prefilling):
                return

    def _has_seat(self, draft: _Draft, prefilling: list[Req]) -> bool:
        if not self._queues.waiting or len(self._queues.running) >= self._config.max_num_seqs:
            return False
        remaining = [req.remaining_len for req in prefilling]
        return has_room_for_prompt(remaining, self._prompt_budget(draft), self._chunk_len)

    def _prompt_budget(self, draft: _Draft) -> int:
        return self._config.max_num_batched_tokens - len(draft.shares)

    def _match(self, req: Req) -> PrefixMatch:
        return self._cache.match(bytes(req.tokens), req.spec.namespace)

    def _ordered(self, now: float) -> list[Req]:
        aged_since = now - self._config.max_wait_s
        return self._policy(
            list(self._queues.waiting),
            cached_len=lambda req: self._match(req).total_len,
            is_aged=lambda req: req.queued_at <= aged_since,
        )

    def _follows(self, req: Req, prefilling: list[Req], draft: _Draft) -> bool:
        """Whether `req` had better wait for a prefix that is being computed now: leader rule."""
        if not prefilling or not self._cache.shares_prefixes:
            return False
        match = self._match(req)
        tail = self._private_tail(req, match, draft)
        cached_len = max(match.total_len, match.matched_len + (tail.num_tokens if tail else 0))
        found = find_leader(req, cached_len, prefilling, min_gain=self._cache.block_size)
        if found is None:
            return False
        req.leader, req.leader_span = found
        return True

    def _try_admit(self, req: Req, draft: _Draft, *, reserve: int) -> bool:
        """Take all that `req` needs and let it run, or change nothing."""
        match = self._match(req)
        tail = self._private_tail(req, match, draft)
        acquired = self._cache.acquire(match, req.total_len, reserve=reserve, private_tail=tail)
        if acquired is None:
            return False
        self._queues.admit(req)
        req.lease = acquired.lease
        req.computed_len = acquired.cached_len
        req.leader = None
        draft.admitted.add(req)
        if acquired.copy is not None:
            draft.copies.append(acquired.copy)
        self._count_admission(req)
        return True

    def _private_tail(self, req: Req, match: PrefixMatch, draft: _Draft) -> PrivateTail | None:
        """A running Req's partly filled block may hold more of this prompt than the tree.

        Not one of those admitted in this very step: their blocks may be targets of its copies.
        """
        if not self._cache.shares_prefixes:
            return None
        parent = self._queues.running.get(req.spec.fork_of) if req.spec.fork_of else None
        sources = [
            source
            for source in (req.leader, parent)
            if source is not None
            and source.state is ReqState.RUNNING
            and source not in draft.admitted
        ]
        return best_private_tail(req, match, sources, block_size=self._cache.block_size)

    def _count_admission(self, req: Req) -> None:
        if req.admitted_once:
            return
        req.admitted_once = True
        req.cached_len = req.computed_len
        self._counters.prompt_tokens += req.prompt_len
        self._counters.cached_tokens += req.cached_len

    # -- prompts under way ---------------------------------------------------------------------

    def _schedule_prefills(self, draft: _Draft) -> None:
        """Divide what the decodes left among all the prompts under way."""
        prefilling = [req for req in self._queues.running.values() if req not in draft.shares]
        prefilling.sort(key=queue_order)
        remaining = [req.remaining_len for req in prefilling]
        shares = share_prefill_budget(remaining, self._prompt_budget(draft), self._chunk_len)
        for req, share in zip(prefilling, shares, strict=True):
            if share:
                draft.shares[req] = share

    def _seal(self, draft: _Draft) -> StepPlan:
        self._counters.steps += 1
        rows = tuple(_scheduled(req, extend_len) for req, extend_len in draft.shares.items())
        return StepPlan(step=self._counters.steps, reqs=rows, copies=tuple(draft.copies))


def _scheduled(req: Req, extend_len: int) -> ScheduledReq:
    assert req.lease is not None
    start = req.computed_len
    is_last = extend_len == req.remaining_len
    return ScheduledReq(
        req_id=req.req_id,
        token_ids=bytes(req.tokens[start * ID_BYTES : (start + extend_len) * ID_BYTES]),
        start=start,
        block_table=req.lease.table.tobytes(),
        sampling=_sampling_state(req) if is_last else None,
    )


def _sampling_state(req: Req) -> SamplingState:
    params = req.spec.params
    if not params.has_penalties:
        return SamplingState(params, req.output_len)
    output = bytes(req.tokens[len(req.spec.prompt) :])
    return SamplingState(params, req.output_len, req.spec.prompt, output)
