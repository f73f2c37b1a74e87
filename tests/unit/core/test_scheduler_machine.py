"""The scheduler with a runner that checks every KV slot, under everything that can happen to it."""

from __future__ import annotations

import random
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from radixserve.core.invariants import check
from radixserve.core.plan import TransferCosts
from radixserve.core.policies import POLICIES
from radixserve.core.prefix_cache import PrefixCache, UnsharedCache
from radixserve.errors import InvariantError
from radixserve.types import FinishReason, Namespace, ReqId, unpack_ids
from tests.kit.builders import NAMELESS, Rig
from tests.kit.faulty_pool import FaultyPool
from tests.kit.truth import prompt_scores

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.core.plan import ReqOutput, StepPlan
    from radixserve.core.req import Req, ReqSpec
    from tests.kit.truth import Tokens

VOCAB_SIZE = 3
SPACE = st.sampled_from([Namespace(), Namespace(), Namespace(), Namespace(salt="x")])
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=16).map(tuple)
PICK = st.integers(0, 1 << 16)
SERVED = (FinishReason.STOP, FinishReason.LENGTH)
SCORED_FROM = st.sampled_from([None, None, None, 0, 0, 1, 2, 5, 11])


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        block_size=st.sampled_from([1, 2, 3, 4]),
        num_blocks=st.integers(6, 24),
        shares=st.sampled_from([True, True, True, False]),
        policy=st.sampled_from(sorted(POLICIES)),
        seats=st.integers(1, 6),
        spare_tokens=st.integers(0, 14),
        chunk_len=st.none() | st.integers(1, 8),
        mode=st.sampled_from(["auto", "recompute", "swap", "swap"]),
        host_blocks=st.sampled_from([0, 5, 30, 30]),
        copies_are_dear=st.booleans(),
        growth=st.sampled_from([0, 0, 64]),
        max_forced=st.sampled_from([0, 0, 2, 5]),
    )
    def start(
        self,
        block_size: int,
        num_blocks: int,
        shares: bool,
        policy: str,
        seats: int,
        spare_tokens: int,
        chunk_len: int | None,
        mode: str = "recompute",
        host_blocks: int = 0,
        copies_are_dear: bool = False,
        growth: int = 0,
        max_forced: int = 0,
    ) -> None:
        kind = PrefixCache if shares else UnsharedCache
        cache = kind(num_blocks=num_blocks, block_size=block_size)
        self.pool = FaultyPool(num_blocks)
        cache.pool = self.pool
        self.rig = Rig(
            num_blocks=num_blocks,
            block_size=block_size,
            vocab_size=VOCAB_SIZE,
            cache=cache,
            host_blocks=host_blocks,
            costs=TransferCosts(
                block_bytes=block_size,
                copy_bytes_per_s=4.0 if copies_are_dear else 100.0,
                prefill_tokens_per_s=10.0,
            ),
            max_forced=max_forced,
            preemption_mode=mode,
            schedule_policy=policy,
            max_num_seqs=seats,
            max_num_batched_tokens=seats + spare_tokens,
            prefill_chunk_len=chunk_len,
            aged_every=5,
        )
        self.host_pool = FaultyPool(host_blocks)
        self.rig.space.pool = self.host_pool
        self.forces = max_forced > 0
        self.seats, self.tokens_a_step, self.growth = seats, seats + spare_tokens, growth
        self.cached_len: dict[str, int] = {}
        self.asked_to_end: set[str] = set()
        self.failed: set[str] = set()
        self.names = 0

    # -- requests ------------------------------------------------------------------------------

    @rule(
        prompt=TOKENS,
        max_tokens=st.integers(1, 24),
        priority=st.sampled_from([0, 0, 0, 1, -1]),
        namespace=SPACE,
        stop=st.sampled_from([(), (), (2,)]),
        min_tokens=st.sampled_from([0, 0, 4]),
        scored_from=SCORED_FROM,
        logprobs=st.sampled_from([None, None, 0]),
        is_fork_point=st.booleans(),
        patience=st.sampled_from([None, None, None, 2.0, 9.0]),
    )
    def add(
        self,
        prompt: Tokens,
        max_tokens: int,
        priority: int = 0,
        namespace: Namespace = NAMELESS,
        stop: tuple[int, ...] = (),
        min_tokens: int = 0,
        patience: float | None = None,
        **fields: Any,
    ) -> None:
        self.submit(
            prompt,
            max_tokens,
            priority=priority,
            namespace=namespace,
            stop=stop,
            min_tokens=min(min_tokens, max_tokens),
            deadline=None if patience is None else self.rig.now + patience,
            **fields,
        )

    def submit(
        self, prompt: Sequence[int], max_tokens: int, *, name: str = "", **fields: Any
    ) -> None:
        """Add a request, unless it could never be served."""
        if self.rig.scheduler.refusal(len(prompt), max_tokens) is None:
            self.names += 1
            name = name or f"r{self.names}"
            self.rig.add(name, prompt, max_tokens=max_tokens, **fields)

    @rule(
        prompt=TOKENS,
        number=st.integers(2, 5),
        max_tokens=st.integers(1, 3),
        is_fork_point=st.booleans(),
        scored_from=SCORED_FROM,
    )
    def add_equals(self, prompt: Tokens, number: int, max_tokens: int, **fields: Any) -> None:
        """Several on one prompt: the first leads, the others copy."""
        for place in range(number):
            self.add(prompt, max_tokens if place else 1, **fields)

    @rule(seed=PICK)
    def crowd(self, seed: int) -> None:
        """Several that grow long: more than a small pool holds."""
        dice = random.Random(seed)
        for _ in range(3):
            prompt = tuple(dice.choices((0, 1), k=dice.randint(1, 9)))
            self.add(
                prompt,
                dice.randint(8, 18),
                dice.choice((0, 0, 1)),
                scored_from=dice.choice((None, None, 0, 4)),
                is_fork_point=dice.random() < 0.2,
            )

    @precondition(lambda self: self.rig.scheduler.queues.running)
    @rule(
        pick=PICK,
        more=st.lists(st.integers(0, 1), max_size=3),
        max_tokens=st.integers(1, 6),
        is_fork_point=st.booleans(),
        scored_from=SCORED_FROM,
    )
    def fork(self, pick: int, more: list[int], max_tokens: int, **fields: Any) -> None:
        running = list(self.rig.scheduler.queues.running.values())
        self.fork_from(running[pick % len(running)], more, max_tokens, **fields)

    @precondition(lambda self: len(self.rig.scheduler.fork_points) > 0)
    @rule(
        pick=PICK,
        more=st.lists(st.integers(0, 1), max_size=5),
        cut=st.sampled_from([0, 0, 0, 1, 3]),
        max_tokens=st.integers(1, 6),
        number=st.integers(1, 3),
        is_fork_point=st.booleans(),
        scored_from=SCORED_FROM,
    )
    def go_on(
        self, pick: int, more: list[int], cut: int, max_tokens: int, number: int, **fields: Any
    ) -> None:
        """Some children of a request that has ended and was kept."""
        kept = self.kept_names
        parent = self.rig.scheduler.fork_points.find(kept[pick % len(kept)])
        assert parent is not None
        for _ in range(number):
            self.fork_from(parent, more, max_tokens, cut=cut, **fields)

    def fork_from(
        self, parent: Req, more: list[int], max_tokens: int, *, cut: int = 0, **fields: Any
    ) -> None:
        tokens = unpack_ids(parent.tokens)
        self.submit(
            tokens[: max(1, len(tokens) - cut)] + more,
            max_tokens,
            namespace=parent.spec.namespace,
            fork_of=parent.req_id,
            **fields,
        )

    @property
    def kept_names(self) -> list[ReqId]:
        return list(self.rig.scheduler.fork_points._kept)

    @precondition(lambda self: len(self.rig.scheduler.fork_points) > 0)
    @rule(pick=PICK)
    def forget(self, pick: int) -> None:
        """Of a name that another request has by now, the abort is that one's."""
        kept = self.kept_names
        self.end(kept[pick % len(kept)])

    @precondition(lambda self: len(self.rig.scheduler.fork_points) > 0)
    @rule(pick=PICK)
    def forget_for_good(self, pick: int) -> None:
        kept = self.kept_names
        self.rig.scheduler.fork_points.forget(kept[pick % len(kept)], is_end=True)

    @precondition(lambda self: self.rig.finals)
    @rule(pick=PICK, prompt=TOKENS, max_tokens=st.integers(1, 4), is_fork_point=st.booleans())
    def use_a_name_again(self, pick: int, prompt: Tokens, max_tokens: int, **fields: Any) -> None:
        """A finished request's name, whether or not it is a fork point, goes to another."""
        kept = [name for name in self.kept_names if name in self.rig.finals]
        names: list[str] = [*kept] or list(self.rig.finals)
        name = names[pick % len(names)]
        if self.rig.scheduler.refusal(len(prompt), max_tokens) is not None:
            return
        self.check_answer(name, self.rig.finals.pop(name))
        for known in (self.rig.specs, self.rig.tokens, self.rig.scores):
            del known[name]
        self.asked_to_end.discard(name)
        self.failed.discard(name)
        self.submit(prompt, max_tokens, name=name, **fields)

    @precondition(lambda self: self.rig.specs)
    @rule(pick=PICK)
    def abort(self, pick: int) -> None:
        """Whatever it is doing: in the inbox, waiting, running, in flight, or long finished."""
        self.end(list(self.rig.specs)[pick % len(self.rig.specs)])

    def end(self, name: str) -> None:
        if self.rig.scheduler.is_live(ReqId(name)):
            self.asked_to_end.add(name)
        self.rig.scheduler.abort(ReqId(name))

    # -- steps ---------------------------------------------------------------------------------

    @property
    def in_flight(self) -> StepPlan | None:
        """The plan to be answered next, if any."""
        return self.rig.scheduler.in_flight

    @precondition(lambda self: self.in_flight is None)
    @rule(fails_at=st.sampled_from([0, 0, 0, 1, 2, 3]), swap_fails=st.sampled_from([0, 0, 1, 2]))
    def schedule(self, fails_at: int, swap_fails: int = 0) -> None:
        # Admission that leaves no room for growth is what makes preemptions.
        self.rig.scheduler._builder.growth.tokens = self.growth
        failures = self.pool.num_failures
        if swap_fails:
            self.host_pool.arm(swap_fails)
        if fails_at:
            self.pool.arm(fails_at)
        try:
            self.check_plan(self.rig.plan())
        except InvariantError as error:
            # Alone, with the whole pool behind it, a Req can fail to get a block only on purpose.
            if error.number != 2 or self.pool.num_failures == failures:
                raise
            assert len(self.rig.scheduler.queues.running) == 1
            check(self.rig.scheduler)
        finally:
            if fails_at:
                self.pool.disarm()
            if swap_fails:
                self.host_pool.disarm()
        self.rig.now += 1.0

    @precondition(lambda self: self.in_flight is not None)
    @rule(fails_at=st.sampled_from([0, 0, 0, 1, 2]))
    def look_ahead(self, fails_at: int = 0) -> None:
        """Plan the next step without this one's result; a runner that forces tokens cannot."""
        if self.forces:
            return
        if fails_at:
            self.pool.arm(fails_at)
        plan = self.rig.plan_ahead()
        if fails_at:
            self.pool.disarm()
        self.rig.now += 0.5
        if plan is not None:
            self.check_plan_ahead(plan)

    def check_plan_ahead(self, plan: StepPlan) -> None:
        """Each row goes on after the row whose token it takes."""
        before, _ = (flight.plan for flight in self.rig.scheduler.flights)
        assert plan.follows == before.step == plan.step - 1
        assert len({row.takes for row in plan.reqs}) == len(plan.reqs) > 0
        for row in plan.reqs:
            assert row.takes is not None
            assert row.sampling is not None
            taken = before.reqs[row.takes]
            assert taken.sampling is not None
            assert (row.req_id, row.start) == (taken.req_id, taken.start + taken.extend_len)
            assert row.sampling.output_len == taken.sampling.output_len + 1

    @precondition(lambda self: self.in_flight is None and self.rig.scheduler.has_work)
    @rule(number=st.integers(1, 12))
    def go(self, number: int) -> None:
        """Several steps in which nothing special happens: without them, few requests would end."""
        for _ in range(number):
            self.schedule(0)
            self.land()

    @precondition(lambda self: self.rig.scheduler.has_work)
    @rule(number=st.integers(1, 20))
    def go_ahead(self, number: int) -> None:
        """The same with a step ahead wherever that can be; one may be left in flight."""
        for _ in range(number):
            if self.in_flight is None:
                self.schedule(0)
            self.look_ahead()
            self.land()

    @precondition(lambda self: self.in_flight is None and self.rig.scheduler.has_work)
    @rule()
    def go_to_the_next_end(self) -> None:
        number = len(self.rig.finals)
        for _ in range(40):
            if len(self.rig.finals) == number:
                self.schedule(0)
                self.land()

    def check_plan(self, plan: StepPlan) -> None:
        """The plan keeps within its budgets, computes something, and goes on where it was."""
        running = self.rig.scheduler.queues.running
        assert plan.num_tokens <= self.tokens_a_step
        assert len(running) <= self.seats
        assert bool(plan.reqs) == bool(running)
        assert len({row.req_id for row in plan.reqs}) == len(plan.reqs)
        for row in plan.reqs:
            req = running[row.req_id]
            end = row.start + row.extend_len
            assert row.start == req.computed_len
            assert row.extend_len >= 1
            assert unpack_ids(row.token_ids) == unpack_ids(req.tokens)[row.start : end]
            assert (row.sampling is not None) == (end == req.total_len)
            assert req.cached_len <= reusable_len(req.spec)

    @precondition(lambda self: self.in_flight is not None)
    @rule()
    def land(self) -> None:
        plan = self.in_flight
        assert plan is not None
        self.rig.land(plan)

    @precondition(lambda self: self.in_flight is not None)
    @rule(pick=PICK)
    def land_with_a_bad_row(self, pick: int) -> None:
        flight = self.rig.scheduler.flights.oldest
        assert flight is not None
        live = {row: req.req_id for row, _, req in flight.live_rows()}
        row = pick % max(1, len(flight.reqs))
        self.failed |= {live[row]} if row in live else set()
        self.rig.land(flight.plan, {row: "not a number"})

    @precondition(lambda self: self.in_flight is not None)
    @rule()
    def fail(self) -> None:
        flight = self.rig.scheduler.flights.oldest
        assert flight is not None
        plan = flight.plan
        carried = {req.req_id for _, _, req in flight.live_rows()}
        before = set(self.rig.finals)
        self.failed |= carried
        self.rig.fail(plan)
        assert carried <= set(self.rig.finals) - before
        swapped = {swap.req_id for swap in plan.swap_ins}
        assert swapped <= set(self.rig.finals) - before
        self.failed |= swapped
        timed_out = {
            name for name in self.rig.finals if self.rig.reason(name) is FinishReason.TIMEOUT
        }
        others = before | carried | swapped | timed_out | self.asked_to_end
        copied = set(self.rig.finals) - others
        assert len(copied) <= len(plan.copies)
        self.failed |= copied

    @rule()
    def flush(self) -> None:
        self.rig.cache.flush()
        check(self.rig.scheduler)
        assert self.rig.cache.tree.num_evictable_blocks == 0

    # -- the end -------------------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        while self.in_flight is not None:
            self.land()
        self.rig.drain(max_steps=5000)
        for kept in self.kept_names:
            self.rig.scheduler.abort(kept)
        self.rig.drain(max_steps=2)
        assert set(self.rig.finals) == set(self.rig.specs)
        for name, final in self.rig.finals.items():
            self.check_answer(name, final)
        assert self.rig.cache.num_private_blocks == 0
        self.rig.cache.flush()
        assert self.pool.num_free == self.pool.num_blocks
        assert self.host_pool.num_free == self.host_pool.num_blocks
        assert self.rig.runner.swapped_in_blocks <= self.rig.scheduler.stats().swapped_in_blocks

    def check_answer(self, name: str, final: ReqOutput) -> None:
        """A served request has the tokens it would have had alone; any other a part of them."""
        spec = self.rig.specs[name]
        expected, got = self.rig.expected(name), self.rig.tokens[name]
        told = self.rig.scores[name]
        assert 0 <= final.cached_len <= reusable_len(spec)
        assert got == expected[: len(got)]
        assert told == prompt_scores(spec)[: len(told)]
        if final.finish_reason in SERVED:
            assert got == expected
            assert told == prompt_scores(spec)
        elif final.finish_reason is FinishReason.ABORT:
            assert name in self.asked_to_end
        elif final.finish_reason is FinishReason.TIMEOUT:
            assert spec.deadline is not None
        else:
            assert name in self.failed
            assert final.error


def reusable_len(spec: ReqSpec) -> int:
    """The most prompt tokens that may come from the cache."""
    start = spec.params.prompt_logprobs_start
    if spec.params.prompt_logprobs is None or max(1, start) >= spec.prompt_len:
        return spec.prompt_len - 1
    return max(1, start) - 1


def play(machine: SchedulerMachine, dice: random.Random, num_rules: int) -> None:
    """Add and step, as drawn by `dice`, then step until nothing is left to do."""
    for turn in count():
        prompt = tuple(dice.choices((0, 1), k=dice.randint(1, 14)))
        if turn >= num_rules and not machine.rig.scheduler.has_work:
            return
        if turn < num_rules and dice.random() < 0.4:
            machine.add(prompt, dice.randint(1, 10), dice.choice((0, 0, 1)))
        machine.schedule(0)
        if machine.in_flight is not None:
            machine.land()


def test_whichever_allocation_fails_every_request_is_served_as_if_alone() -> None:
    for k in count(1):
        machine = SchedulerMachine()
        machine.start(3, 16, True, "lpm", 4, 8, 5)
        machine.pool.arm(k)
        play(machine, random.Random(3), num_rules=25)
        machine.teardown()
        if machine.pool.num_failures == 0:
            break
    assert k > 20, "too few allocations to mean anything"


@pytest.mark.parametrize("mode", ["auto", "swap"])
def test_whichever_host_allocation_fails_every_request_is_served_as_if_alone(mode: str) -> None:
    for k in count(1):
        machine = SchedulerMachine()
        machine.start(3, 12, True, "fcfs", 4, 8, 5, mode, 20)
        machine.host_pool.arm(k)
        play(machine, random.Random(3), num_rules=60)
        machine.teardown()
        if machine.host_pool.num_failures == 0:
            break
    assert k > 5, "too few swaps to mean anything"


TestScheduler = pytest.mark.timeout(900)(SchedulerMachine.TestCase)
