"""`Lookahead`: the step after the one that runs, planned without that one's result.

    host     plan N | plan N+1 |  wait   | land N, plan N+2 |  wait   | land N+1, ...
    device          | ====== N ====== | ====== N+1 ======= | ====== N+2 ...

What comes after a sampled token is known but for the token itself, which the device has. So a plan
may say "the token that row r of the step before samples" and be queued behind that step, be that
step decodes or the ends of prompts.

A Req that a stop token ends in step N has a row in N+1 all the same: void, nobody asks for it. It
writes one slot of a block that its Req alone had and that is free by then. Whoever is given that
block writes to it in a later step, and steps are computed in order.

It is done only where `Scheduler.schedule` could have decided nothing else: nobody arrives, waits
with a hope of being admitted, has to give way, or is out of time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve.core.admission import lowest_below
from radixserve.core.plan import SamplingState, ScheduledReq, StepPlan
from radixserve.types import ID_BYTES

if TYPE_CHECKING:
    from radixserve.core.flights import Flight
    from radixserve.core.prefix_cache import PrefixCache
    from radixserve.core.queues import Queues
    from radixserve.core.req import Req
    from radixserve.core.stats import Counters
    from radixserve.core.step_builder import StepBuilder

UNKNOWN_TOKEN = bytes(ID_BYTES)
"""Stands in a plan for the token that the step before samples."""


class Lookahead:
    """Follows a step in flight by the next one, where nothing can come between them.

    Args:
        queues: Who runs and who waits.
        cache: Asked for the blocks of one more token each.
        builder: Plans the other steps; knows the rules, and whom it turned away.
        counters: Told of the step.
    """

    def __init__(
        self, queues: Queues, cache: PrefixCache, builder: StepBuilder, counters: Counters
    ) -> None:
        self._queues = queues
        self._cache = cache
        self._builder = builder
        self._counters = counters

    def follow(self, flight: Flight) -> StepPlan | None:
        """Return the step after the one in flight; None if its result must be waited for.

        Those that end at their own limit with the token under way are left out of it.

        Mutates: the leases of those that take part, pool and tree (by eviction), counters. With
            None some leases may have grown by a block, which their next step needs in any case.
        Complexity: O(running Reqs * their blocks).
        """
        going = self._going_on(flight)
        if not going or self._is_anybody_due(len(going)) or not self._take_blocks(going):
            return None
        self._builder.growth.step_passed(has_preempted=False)
        self._counters.steps += 1
        self._counters.steps_ahead += 1
        return StepPlan(
            step=self._counters.steps,
            reqs=tuple(_row_after(row, scheduled, req) for row, scheduled, req in going),
            follows=flight.plan.step,
        )

    def _going_on(self, flight: Flight) -> list[tuple[int, ScheduledReq, Req]]:
        """Return the rows that go on after the step; none if somebody's next tokens are known to
        the host alone, or to nobody yet."""
        live = list(flight.live_rows())
        if len(live) < len(self._queues.running):
            return []  # somebody sits this step out: it is their turn next
        if not all(samples_plainly(scheduled, req) for _, scheduled, req in live):
            return []
        return [each for each in live if each[2].output_len + 1 < each[2].spec.params.max_tokens]

    def _is_anybody_due(self, num_going: int) -> bool:
        """Whether `schedule` might let somebody in.

        Not if all seats are taken, by whomever they wait for or by others as urgent; nor if it had
        no memory for them last time, for nobody has ended since and nobody else has arrived.
        """
        waiting, builder = self._queues.waiting, self._builder
        if not waiting:
            return False
        if num_going < builder.config.max_num_seqs and num_going != builder.num_when_full:
            return True
        urgent = waiting.most_urgent()
        if urgent is None or not builder.policy.honours_priority:
            return False
        return lowest_below(self._queues.running.values(), urgent.spec.priority) is not None

    def _take_blocks(self, going: list[tuple[int, ScheduledReq, Req]]) -> bool:
        """Take what the token after the one under way needs, for all of them or for none."""
        leases = [(req.lease, req.total_len + 1) for _, _, req in going if req.lease is not None]
        missing = sum(
            max(0, self._cache.num_blocks_for(end) - len(lease.table)) for lease, end in leases
        )
        if missing > self._cache.num_available_blocks:
            return False
        return all(self._cache.extend(lease, end) for lease, end in leases)


def samples_plainly(scheduled: ScheduledReq, req: Req) -> bool:
    """Whether a row samples a token, and nothing of it is needed on the host.

    What looks at the output so far (penalties, grammars, forbidden words) needs that token, and so
    do log probabilities.
    """
    return (
        scheduled.sampling is not None and not req.needs_output and req.spec.params.logprobs is None
    )


def _row_after(row: int, scheduled: ScheduledReq, req: Req) -> ScheduledReq:
    assert req.lease is not None
    return ScheduledReq(
        req_id=req.req_id,
        token_ids=UNKNOWN_TOKEN,
        start=scheduled.start + scheduled.extend_len,
        block_table=req.lease.table.tobytes(),
        sampling=SamplingState(req.spec.params, req.output_len + 1),
        takes=row,
    )
