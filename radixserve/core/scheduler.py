"""The scheduler: which Reqs take part in the next step, and what a step's result means for them.

    add / abort             -> inbox      at any time, on the owner's thread
    plan    = schedule(now)               drains the inbox, decides, returns a frozen plan
    result  = (somebody computes it)
    outputs = update(plan, result)        or fail(plan, why)

With `schedule_ahead` a second plan may be given out before the first is answered: see `lookahead`.

Tree, pool and queues change only inside `schedule`, `update` and `fail`. So there are no locks,
and an abort cannot free a block that a kernel is writing.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from radixserve.core.admission import never_fits
from radixserve.core.deadlines import Deadlines
from radixserve.core.flights import Flight, Flights
from radixserve.core.fork_points import ForkPoints
from radixserve.core.inbox import End, InboxEntry
from radixserve.core.lookahead import Lookahead
from radixserve.core.policies import make_policy
from radixserve.core.queues import Queues
from radixserve.core.req import Req, ReqSpec
from radixserve.core.service import AttainedService
from radixserve.core.stats import Counters, take_stats
from radixserve.core.step_builder import StepBuilder
from radixserve.core.swap_space import SwapSpace
from radixserve.errors import InvariantError
from radixserve.types import FinishReason, ReqId

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve.config import SchedulerConfig
    from radixserve.core.plan import ReqOutput, StepPlan, StepResult
    from radixserve.core.policies import QueuePolicy
    from radixserve.core.prefix_cache import PrefixCache
    from radixserve.core.stats import SchedulerStats
    from radixserve.types import TokenId, TokenLogprob


class Scheduler:
    """Continuous batching with prefix reuse, chunked prefill and preemption.

    Args:
        cache: The KV memory; this scheduler is its only user.
        config: Limits and the name of the queue policy.
        max_model_len: Most tokens of prompt and output together.
        policy: Order of the waiting queue, in place of the one that `config` names.
        swap_space: Host memory for the KV of preempted Reqs; none when None.
    """

    def __init__(
        self,
        cache: PrefixCache,
        config: SchedulerConfig,
        *,
        max_model_len: int,
        policy: QueuePolicy | None = None,
        swap_space: SwapSpace | None = None,
    ) -> None:
        self.cache = cache
        self.config = config
        self.max_model_len = max_model_len
        policy = policy or make_policy(config.schedule_policy, aged_every=config.aged_every)
        self.queues = Queues(policy.sort_key)
        self.service = AttainedService()
        self.counters = Counters()
        self.swap_space = swap_space or SwapSpace(num_blocks=0, block_size=cache.block_size)
        self.fork_points = ForkPoints(cache)
        self._builder = StepBuilder(
            self.queues,
            cache,
            config,
            policy,
            self.counters,
            self.service,
            self.swap_space,
            self.fork_points,
        )
        self._lookahead = Lookahead(self.queues, cache, self._builder, self.counters)
        self.flights = Flights()
        self.inbox: deque[InboxEntry] = deque()
        self._live: set[ReqId] = set()
        self._inbox_tokens = 0
        self._deadlines = Deadlines()
        self._pending: list[ReqOutput] = []

    def __repr__(self) -> str:
        tree = self.cache.tree
        return (
            f"<Scheduler waiting={len(self.queues.waiting)} running={len(self.queues.running)} | "
            f"free={self.cache.pool.num_free} private={self.cache.num_private_blocks} "
            f"evictable={tree.num_evictable_blocks} protected={tree.num_protected_blocks}>"
        )

    # -- the inbox -----------------------------------------------------------------------------

    def refusal(self, prompt_len: int, max_tokens: int) -> str | None:
        """Return why a Req of this size can never be served, with the numbers; None if it can."""
        return never_fits(
            prompt_len,
            max_tokens,
            max_model_len=self.max_model_len,
            num_blocks=self.cache.pool.num_blocks,
            block_size=self.cache.block_size,
        )

    def add(self, spec: ReqSpec) -> None:
        """Put a Req in the inbox.

        Mutates: the inbox only.
        Raises:
            InvariantError: the name is in use, the prompt is empty, or it can never fit (9).
        """
        why = self.refusal(spec.prompt_len, spec.params.max_tokens)
        if spec.req_id in self._live or spec.prompt_len == 0 or why is not None:
            raise InvariantError(9, f"{spec.req_id} cannot be added: {why or 'name or prompt'}")
        self._live.add(spec.req_id)
        self.inbox.append(spec)
        self._inbox_tokens += spec.prompt_len

    def abort(self, req_id: ReqId, reason: FinishReason = FinishReason.ABORT) -> None:
        """Ask for the end of a Req, or of a fork point, at the next `schedule`.

        Unknown and finished names are ignored.

        Mutates: the inbox only.
        """
        if req_id in self._live or req_id in self.fork_points:
            self.inbox.append(End(req_id, reason))

    def between_steps(self, work: Callable[[], None]) -> None:
        """Put something in the inbox that is done when no plan is in flight."""
        self.inbox.append(work)

    def is_live(self, req_id: ReqId) -> bool:
        """Whether a Req of this name has been added and has not finished."""
        return req_id in self._live

    @property
    def live_ids(self) -> frozenset[ReqId]:
        """Names in the inbox, waiting or running."""
        return frozenset(self._live)

    @property
    def has_work(self) -> bool:
        """Whether `schedule` or `update` would have anything to do."""
        return bool(self._live or self.inbox or self._pending or self.flights)

    @property
    def num_queued(self) -> int:
        """Reqs that have been added and are not running."""
        return len(self._live) - len(self.queues.running)

    @property
    def queued_tokens(self) -> int:
        """Tokens of the Reqs that have been added and are not running."""
        return self._inbox_tokens + self.queues.waiting.num_tokens

    @property
    def reserve_blocks(self) -> int:
        """Blocks that an admission must leave for the growth of the running Reqs."""
        return self._builder.reserve_blocks()

    @property
    def in_flight(self) -> StepPlan | None:
        """The plan that has been given out and is to be answered next."""
        return self.flights.oldest.plan if self.flights.oldest else None

    # -- the step ------------------------------------------------------------------------------

    def schedule(self, now: float) -> StepPlan:
        """Decide the next step. The plan may be empty; `update` must be called all the same.

        Args:
            now: Seconds on any clock that only grows.
        Mutates: queues, tree and pool.
        Raises:
            InvariantError: the last plan has not been answered (8).
        """
        if self.flights:
            raise InvariantError(8, "schedule() before the running plan's update()")
        self.cache.tick(now)
        self._drain_inbox()
        self._expire(now)
        return self.flights.begin(self._builder.build(), self.queues.running)

    def schedule_ahead(self, now: float) -> StepPlan | None:
        """Decide the step after the one in flight before that one's result is known.

        It is to be computed after that one, and answered after it. `schedule` may be called again
        when both have been answered.

        Returns: None where the result, or whatever waits to be done, may change what comes next.
        Mutates: leases, tree and pool.
        """
        flight = self.flights.oldest
        is_due = bool(self.inbox) or self._deadlines.has_expired(now)
        if flight is None or len(self.flights) > 1 or is_due:
            return None
        self.cache.tick(now)
        plan = self._lookahead.follow(flight)
        return plan and self.flights.begin(plan, self.queues.running)

    def update(self, plan: StepPlan, result: StepResult) -> list[ReqOutput]:
        """Take in a step's result: append tokens, publish blocks, finish what is finished.

        Returns: one output for each Req that got a token or ended since the last call.
        Mutates: queues, tree and pool.
        Raises:
            InvariantError: the result is not this plan's (8).
        """
        if result.step != plan.step or len(result.next_tokens) != len(plan.reqs):
            raise InvariantError(8, f"step {plan.step} is answered by {result!r}")
        for row, scheduled, req in self._land(plan).live_rows():
            error = result.row_errors.get(row)
            if error is not None:
                self._finish(req, FinishReason.ERROR, error=error)
                continue
            self._publish(req, scheduled.start + scheduled.extend_len)
            self._advance(req, row, result, num_computed=scheduled.extend_len)
        return self._take_pending()

    def fail(self, plan: StepPlan, why: str) -> list[ReqOutput]:
        """Take in that a step could not be computed: its Reqs end with an error, nobody else's.

        What they had published before this step stays; what this step may have half written is
        private and goes.
        """
        flight = self._land(plan)
        self.swap_space.forget(plan.swap_outs, self.queues.waiting)
        for req in flight.carried(self.queues.running.values()):
            self._finish(req, FinishReason.ERROR, error=why)
        return self._take_pending()

    def stats(self) -> SchedulerStats:
        """Return counters and gauges as they are now."""
        return take_stats(self)

    # -- inside --------------------------------------------------------------------------------

    def _drain_inbox(self) -> None:
        while self.inbox:
            entry = self.inbox.popleft()
            if isinstance(entry, ReqSpec):
                self._arrive(entry)
            elif not isinstance(entry, End):
                entry()
            elif (req := self.queues.find(entry.req_id)) is not None:
                self._finish(req, entry.reason)
            elif entry.reason is not FinishReason.STOP:  # it may have ended with a step ahead
                self.fork_points.forget(entry.req_id)

    def _arrive(self, spec: ReqSpec) -> None:
        self._inbox_tokens -= spec.prompt_len
        self.fork_points.forget(spec.req_id)  # its name is used again
        self.queues.arrive(spec)
        self.service.arrive(spec.tenant)
        if spec.deadline is not None:
            self._deadlines.add(spec.req_id, spec.deadline)

    def _expire(self, now: float) -> None:
        """End the Reqs whose time is up, with what they have."""
        for deadline, req_id in self._deadlines.take_expired(now):
            req = self.queues.find(req_id) if req_id in self._live else None
            # The name may have been given to another Req since.
            if req is not None and req.spec.deadline == deadline:
                self._finish(req, FinishReason.TIMEOUT)

    def _land(self, plan: StepPlan) -> Flight:
        """The plan's copies have been made, or given up with their Reqs."""
        flight = self.flights.land(plan)
        if plan.copies:
            for req in self.queues.running.values():
                assert req.lease is not None
                self.cache.copy_made(req.lease)
        self.swap_space.landed()
        return flight

    def _publish(self, req: Req, computed_len: int) -> None:
        """Some more of a Req's KV has been written: publish the blocks that are full."""
        assert req.lease is not None
        self.counters.recomputed_tokens += max(
            0, min(computed_len, req.preempted_len) - req.computed_len
        )
        req.computed_len = computed_len
        if computed_len // self.cache.block_size > req.lease.num_shared:
            self.cache.commit(req.lease, bytes(req.tokens), computed_len)

    def _advance(self, req: Req, row: int, result: StepResult, *, num_computed: int) -> None:
        """Take in what a row's logits said: prompt scores, the next token, those forced by it."""
        scores: tuple[TokenLogprob, ...] = ()
        if result.prompt_logprobs:
            scores = result.prompt_logprobs.get(row, ())
            req.scored_len += len(scores)
        token = result.next_tokens[row]
        if token is None:
            self.service.serve(req.spec.tenant, num_computed, 0)
            if scores:
                self._pending.append(req.output((), prompt_logprobs=scores))
            return
        tokens: tuple[TokenId, ...] = (token,)
        if result.forced_tokens:
            tokens += result.forced_tokens.get(row, ())
        reason = req.append(tokens)
        self.counters.output_tokens += req.num_new
        self.service.serve(req.spec.tenant, num_computed, req.num_new)
        logprob = result.logprobs.get(row) if result.logprobs else None
        output = req.output(
            tokens[: req.num_new],
            reason=reason,
            logprobs=() if logprob is None else (logprob,),
            prompt_logprobs=scores,
        )
        if reason is None:
            self._pending.append(output)
        else:
            self._end(req, reason, output)

    def _finish(self, req: Req, reason: FinishReason, *, error: str | None = None) -> None:
        """End a Req for a reason that is none of its own tokens."""
        self._end(req, reason, req.output((), reason=reason, error=error))

    def _end(self, req: Req, reason: FinishReason, output: ReqOutput) -> None:
        """The one way a Req ends: give everything back, emit the one final output.

        Its full blocks are in the tree already: every step publishes what it filled.
        """
        if req.spec.is_fork_point and reason in (FinishReason.STOP, FinishReason.LENGTH):
            if req.lease is not None:
                self.fork_points.keep(req)
        elif req.lease is not None:
            self.cache.release(req.lease, req.release_hint(reason))
            req.lease = None
        self.swap_space.drop(req)
        self.queues.finish(req)
        self.service.leave(req.spec.tenant)
        self._live.remove(req.req_id)
        self._pending.append(output)

    def _take_pending(self) -> list[ReqOutput]:
        outputs, self._pending = self._pending, []
        return outputs
