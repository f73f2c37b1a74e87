"""How one step is put together: decodes, then admissions, then the prompts under way."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from radixserve.core.admission import (
    GrowthReserve,
    best_private_tail,
    find_leader,
    growth_blocks,
    has_room_for_prompt,
    is_held_back,
    lowest_below,
    share_prefill_budget,
)
from radixserve.core.draft import Draft
from radixserve.core.plan import StepPlan
from radixserve.core.preemption import choose_victim, queue_order
from radixserve.core.preemptor import Preemptor
from radixserve.core.req import Req, ReqState
from radixserve.core.rows import row_of
from radixserve.errors import InvariantError
from radixserve.types import ID_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from radixserve.config import SchedulerConfig
    from radixserve.core.fork_points import ForkPoints
    from radixserve.core.policies import QueuePolicy
    from radixserve.core.prefix_cache import PrefixCache, PrivateTail
    from radixserve.core.prefix_match import PrefixMatch
    from radixserve.core.queues import Queues
    from radixserve.core.service import AttainedService
    from radixserve.core.stats import Counters
    from radixserve.core.swap_space import SwapSpace


EXAMINED_REQS = 512
"""Most waiting Reqs looked at in one step. Those that wait for a leader are passed over, and there
may be thousands of them."""


class StepBuilder:
    """Turns the queues and the cache into the next step; remembers how much room growth needs.

    Args:
        queues: Moved between by admission and preemption.
        cache: Asked for blocks.
        config: Budgets.
        policy: Order in which waiting Reqs are considered.
        counters: Told of admissions and preemptions.
        service: What each tenant has had.
        space: Where preempted Reqs' KV may be saved.
        fork_points: Given up before anybody is preempted or has to wait.
    """

    def __init__(
        self,
        queues: Queues,
        cache: PrefixCache,
        config: SchedulerConfig,
        policy: QueuePolicy,
        counters: Counters,
        service: AttainedService,
        space: SwapSpace,
        fork_points: ForkPoints,
    ) -> None:
        self._queues = queues
        self._cache = cache
        self.config = config
        self.policy = policy
        self._counters = counters
        self._service = service
        self._fork_points = fork_points
        self.growth = GrowthReserve()
        self.num_when_full: int | None = None
        """Running Reqs, if all that wait were too much for the memory beside them in the last step
        built."""
        self._preemptor = Preemptor(cache, space, config.preemption_mode, counters)
        self._chunk_len = config.prefill_chunk_len or config.max_num_batched_tokens

    def build(self) -> StepPlan:
        """Decide who computes how much, and take the blocks for it.

        Mutates: queues, cache, counters.
        """
        draft = Draft()
        self.num_when_full = None
        self._schedule_decodes(draft)
        if not draft.has_preempted:
            self._admit(draft)
        self._schedule_prefills(draft)
        self.growth.step_passed(has_preempted=draft.has_preempted)
        return self._seal(draft)

    # -- decodes -------------------------------------------------------------------------------

    def _schedule_decodes(self, draft: Draft) -> None:
        """Every Req that decodes gets its tokens; when blocks run out, somebody gives way."""
        decoding = [req for req in self._queues.running.values() if req.is_decoding]
        spare = self.config.max_num_batched_tokens - len(decoding)
        for req in decoding:
            if req.state is ReqState.RUNNING:
                self._make_room(req, draft)
            if req.state is ReqState.RUNNING:
                share = min(req.remaining_len, 1 + spare)
                spare -= share - 1
                draft.shares[req] = share

    def _make_room(self, req: Req, draft: Draft) -> None:
        """Give `req` the blocks for its next tokens, preempting others or, at worst, itself."""
        assert req.lease is not None
        while not self._cache.extend(req.lease, req.total_len):
            if self._fork_points.forget_oldest():
                continue
            running = list(self._queues.running.values())
            victim = choose_victim(running, block_size=self._cache.block_size)
            if victim is None:
                raise InvariantError(2, f"{req!r} is alone and does not fit in {self._cache!r}")
            self._preempt(victim, draft)
            if victim is req:
                return

    def _preempt(self, req: Req, draft: Draft) -> None:
        """Take a running Req's blocks; it goes back to its old place in the queue."""
        others = [other for other in self._queues.running.values() if other is not req]
        swap = self._preemptor.preempt(req, others)
        if swap is not None:
            draft.swap_outs[req] = swap
        self._queues.preempt(req)
        draft.shares.pop(req, None)
        draft.has_preempted = True

    # -- admissions ----------------------------------------------------------------------------

    def _admit(self, draft: Draft) -> None:
        """Move Reqs from the queue into the step, in the policy's order, while there is room."""
        prefilling = self._prefilling(draft)
        if self.policy.honours_priority:
            self._admit_over_lower(draft, prefilling)
        passed_over: set[Req] = set()
        while self._has_seat(draft, prefilling):
            req = self._next_candidate(draft, prefilling, passed_over)
            if req is None:
                return
            if not self._try_admit(req, draft):
                self.num_when_full = None if passed_over else len(self._queues.running)
                return
            prefilling.append(req)

    def _next_candidate(
        self, draft: Draft, prefilling: list[Req], passed_over: set[Req]
    ) -> Req | None:
        """Return whom the policy names first, of those that need not wait for a leader.

        Asked anew after each admission, since that changes the queue and the policy's mind.
        """
        for req in islice(self._candidates(), EXAMINED_REQS):
            if req in passed_over:
                continue
            if not is_held_back(req) and not self._follows(req, prefilling, draft):
                return req
            passed_over.add(req)
        return None

    def _admit_over_lower(self, draft: Draft, prefilling: list[Req]) -> None:
        """A waiting Req takes the place of running ones of a strictly lower priority."""
        running = self._queues.running
        while (urgent := self._queues.waiting.most_urgent()) is not None:
            victim = lowest_below(running.values(), urgent.spec.priority)
            # A victim must not hold the source or the target of a copy of this very step.
            if victim is None or draft.copies or is_held_back(urgent):
                return
            if self._follows(urgent, prefilling, draft):
                return
            has_seat = len(running) < self.config.max_num_seqs
            if has_seat and self._try_admit(urgent, draft):
                prefilling.append(urgent)
                continue
            self._preempt(victim, draft)
            if victim in prefilling:
                prefilling.remove(victim)

    def _candidates(self) -> Iterator[Req]:
        """Those that have run before go first, unless somebody more urgent waits."""
        waiting = self._queues.waiting
        urgent = waiting.most_urgent()
        for req in waiting.resuming:
            if urgent is not None and req.spec.priority == urgent.spec.priority:
                yield req
        yield from self.policy.candidates(waiting, self)

    def _has_seat(self, draft: Draft, prefilling: list[Req]) -> bool:
        if not self._queues.waiting or len(self._queues.running) >= self.config.max_num_seqs:
            return False
        remaining = [req.remaining_len for req in prefilling]
        return has_room_for_prompt(remaining, self._prompt_budget(draft), self._chunk_len)

    def _prompt_budget(self, draft: Draft) -> int:
        return self.config.max_num_batched_tokens - sum(draft.shares.values())

    def cached_len(self, req: Req) -> int:
        """Tokens of a Req that the tree holds now. Part of `QueueView`."""
        return self._match(req).total_len

    def attained(self, tenant: str) -> float:
        """Service a tenant has had. Part of `QueueView`."""
        return self._service.attained(tenant)

    def _match(self, req: Req) -> PrefixMatch:
        memo = req.match_memo
        if memo is None or memo.version != self._cache.tree.version:
            key = bytes(req.tokens[: (req.reusable_len + 1) * ID_BYTES])
            memo = self._cache.match(key, req.spec.namespace)
            req.match_memo = memo
        return memo

    def _follows(self, req: Req, prefilling: list[Req], draft: Draft) -> bool:
        """Whether `req` had better wait for a prefix that is being computed now: leader rule."""
        if not prefilling or not self._cache.shares_prefixes:
            return False
        match = self._match(req)
        tail = self._private_tail(req, match, draft)
        cached_len = max(match.total_len, match.matched_len + (tail.num_tokens if tail else 0))
        if req.swapped is not None and self._preemptor.space.can_restore(req, match):
            cached_len = max(cached_len, req.swapped.num_tokens)
        found = find_leader(req, cached_len, prefilling, min_gain=self._cache.block_size)
        if found is None:
            return False
        req.leader, req.leader_span = found
        return True

    def _try_admit(self, req: Req, draft: Draft) -> bool:
        """Take all that `req` needs and let it run, or change nothing but give up fork points."""
        parent = (req.spec.fork_of,) if req.spec.fork_of else ()
        while not self._admit_one(req, draft):
            if not self._fork_points.forget_oldest(spared=draft.forked.union(parent)):
                return bool(parent) and self._admit_without_parent(req, draft)
        return True

    def _admit_without_parent(self, req: Req, draft: Draft) -> bool:
        """The fork point itself may be what takes the room that its child needs."""
        parent = req.spec.fork_of
        if parent is None or parent in draft.forked or parent not in self._fork_points:
            return False
        self._fork_points.forget(parent)
        return self._admit_one(req, draft)

    def _admit_one(self, req: Req, draft: Draft) -> bool:
        match = self._match(req)
        restores = self._preemptor.space.can_restore(req, match)
        if restores:
            match = replace(match, tail=None)
        tail = None if restores else self._private_tail(req, match, draft)
        reserve = self.reserve_blocks()
        acquired = self._cache.acquire(match, req.total_len, reserve=reserve, private_tail=tail)
        if acquired is None:
            return False
        self._queues.admit(req)
        req.lease = acquired.lease
        req.computed_len = acquired.cached_len
        self._resume(req, draft, restores=restores)
        if acquired.copy is not None:
            draft.copies.append(acquired.copy)
            sources = (req.leader, self._parent(req))
            draft.forked.update(source.req_id for source in sources if source is not None)
        req.leader = None
        req.match_memo = None
        draft.admitted.add(req)
        self.policy.admitted(req)
        self._count_admission(req)
        return True

    def _resume(self, req: Req, draft: Draft, *, restores: bool) -> None:
        """Bring back what host memory has of a Req that was preempted, if it is of any use."""
        swap = self._preemptor.resume(req, restores=restores)
        if swap is not None:
            draft.swap_ins.append(swap)
        else:
            draft.swap_outs.pop(req, None)  # its host blocks may be another's by now

    def reserve_blocks(self) -> int:
        """Blocks that the running Reqs will want soon; a lone newcomer may have them all."""
        running = self._queues.running
        growth = self.growth.tokens
        return growth_blocks(running.values(), self._cache.block_size, growth) if running else 0

    def _private_tail(self, req: Req, match: PrefixMatch, draft: Draft) -> PrivateTail | None:
        """Somebody's partly filled block may hold more of this prompt than the tree.

        Not one of those admitted in this very step: their blocks may be targets of its copies.
        """
        if not self._cache.shares_prefixes:
            return None
        sources = [
            source
            for source in (req.leader, self._parent(req))
            if source is not None and source.lease is not None and source not in draft.admitted
        ]
        return best_private_tail(req, match, sources, block_size=self._cache.block_size)

    def _parent(self, req: Req) -> Req | None:
        name = req.spec.fork_of
        return self._queues.running.get(name) or self._fork_points.find(name) if name else None

    def _count_admission(self, req: Req) -> None:
        if req.admitted_once:
            return
        req.admitted_once = True
        req.cached_len = req.computed_len
        parent = self._parent(req)
        req.borrowed_len = req.cached_len if parent is None else parent.borrowed_len
        self._counters.prompt_tokens += req.prompt_len
        self._counters.cached_tokens += req.cached_len
        self._counters.namespaces.count(req.spec.namespace, req.prompt_len, req.cached_len)

    # -- prompts under way ---------------------------------------------------------------------

    def _schedule_prefills(self, draft: Draft) -> None:
        """Divide what the decodes left among all the prompts under way."""
        prefilling = self._prefilling(draft)
        remaining = [req.remaining_len for req in prefilling]
        shares = share_prefill_budget(remaining, self._prompt_budget(draft), self._chunk_len)
        for req, share in zip(prefilling, shares, strict=True):
            if share:
                draft.shares[req] = share

    def _prefilling(self, draft: Draft) -> list[Req]:
        """Running Reqs that have no share of the step yet, in order of urgency."""
        running = self._queues.running.values()
        return sorted((req for req in running if req not in draft.shares), key=queue_order)

    def _seal(self, draft: Draft) -> StepPlan:
        self._counters.steps += 1
        rows = tuple(row_of(req, extend_len) for req, extend_len in draft.shares.items())
        self._counters.swapped_out_blocks += sum(s.num_blocks for s in draft.swap_outs.values())
        self._counters.swapped_in_blocks += sum(swap.num_blocks for swap in draft.swap_ins)
        return StepPlan(
            step=self._counters.steps,
            reqs=rows,
            copies=tuple(draft.copies),
            swap_outs=tuple(draft.swap_outs.values()),
            swap_ins=tuple(draft.swap_ins),
        )
