"""The scheduler with a runner that checks every KV slot, under everything that can happen to it."""

from __future__ import annotations

import random
from itertools import count
from typing import TYPE_CHECKING

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from radixserve.core.invariants import check
from radixserve.core.plan import TransferCosts
from radixserve.core.policies import POLICIES
from radixserve.core.prefix_cache import PrefixCache, UnsharedCache
from radixserve.errors import InvariantError
from radixserve.types import FinishReason, Namespace, ReqId, unpack_ids
from tests.kit.builders import Rig
from tests.kit.faulty_pool import FaultyPool

if TYPE_CHECKING:
    from radixserve.core.plan import ReqOutput, StepPlan
    from tests.kit.truth import Tokens

VOCAB_SIZE = 3
SPACE = st.sampled_from([Namespace(), Namespace(), Namespace(), Namespace(salt="x")])
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=16).map(tuple)
PICK = st.integers(0, 1 << 16)
SERVED = (FinishReason.STOP, FinishReason.LENGTH)


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        block_size=st.sampled_from([1, 2, 3, 4]),
        num_blocks=st.integers(6, 24),
        shares=st.sampled_from([True, True, True, False]),
        policy=st.sampled_from(sorted(POLICIES)),
        seats=st.integers(1, 6),
        tokens_a_step=st.integers(6, 20),
        chunk_len=st.none() | st.integers(1, 8),
        mode=st.sampled_from(["auto", "recompute", "swap", "swap"]),
        host_blocks=st.sampled_from([0, 5, 30, 30]),
        copies_are_dear=st.booleans(),
        growth=st.sampled_from([0, 0, 64]),
    )
    def start(
        self,
        block_size: int,
        num_blocks: int,
        shares: bool,
        policy: str,
        seats: int,
        tokens_a_step: int,
        chunk_len: int | None,
        mode: str = "recompute",
        host_blocks: int = 0,
        copies_are_dear: bool = False,
        growth: int = 0,
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
            preemption_mode=mode,
            schedule_policy=policy,
            max_num_seqs=seats,
            max_num_batched_tokens=tokens_a_step,
            prefill_chunk_len=chunk_len,
            aged_every=5,
        )
        self.host_pool = FaultyPool(host_blocks)
        self.rig.space.pool = self.host_pool
        self.seats, self.tokens_a_step, self.growth = seats, tokens_a_step, growth
        self.in_flight: StepPlan | None = None
        self.cached_len: dict[str, int] = {}
        self.asked_to_end: set[str] = set()
        self.failed: set[str] = set()

    # -- requests ------------------------------------------------------------------------------

    @rule(
        prompt=TOKENS,
        max_tokens=st.integers(1, 24),
        priority=st.sampled_from([0, 0, 0, 1, -1]),
        namespace=SPACE,
        stop=st.sampled_from([(), (), (2,)]),
    )
    def add(
        self,
        prompt: Tokens,
        max_tokens: int,
        priority: int,
        namespace: Namespace,
        stop: tuple[int, ...],
    ) -> None:
        if self.rig.scheduler.refusal(len(prompt), max_tokens) is None:
            self.rig.add(
                f"r{len(self.rig.specs)}",
                prompt,
                max_tokens=max_tokens,
                priority=priority,
                namespace=namespace,
                stop=stop,
            )

    @rule(seed=PICK)
    def crowd(self, seed: int) -> None:
        """Several that grow long: more than a small pool holds."""
        dice = random.Random(seed)
        for _ in range(3):
            prompt = tuple(dice.choices((0, 1), k=dice.randint(1, 9)))
            self.add(prompt, dice.randint(8, 18), dice.choice((0, 0, 1)), Namespace(), ())

    @precondition(lambda self: self.rig.scheduler.queues.running)
    @rule(pick=PICK, more=st.lists(st.integers(0, 1), max_size=3), max_tokens=st.integers(1, 6))
    def fork(self, pick: int, more: list[int], max_tokens: int) -> None:
        running = list(self.rig.scheduler.queues.running.values())
        parent = running[pick % len(running)]
        prompt = unpack_ids(parent.tokens) + more
        if self.rig.scheduler.refusal(len(prompt), max_tokens) is None:
            self.rig.add(
                f"r{len(self.rig.specs)}",
                prompt,
                max_tokens=max_tokens,
                namespace=parent.spec.namespace,
                fork_of=parent.req_id,
            )

    @precondition(lambda self: self.rig.specs)
    @rule(pick=PICK)
    def abort(self, pick: int) -> None:
        """Whatever it is doing: in the inbox, waiting, running, in flight, or long finished."""
        name = list(self.rig.specs)[pick % len(self.rig.specs)]
        if self.rig.scheduler.is_live(ReqId(name)):
            self.asked_to_end.add(name)
        self.rig.scheduler.abort(ReqId(name))

    # -- steps ---------------------------------------------------------------------------------

    @precondition(lambda self: self.in_flight is None)
    @rule(fails_at=st.sampled_from([0, 0, 0, 1, 2, 3]), swap_fails=st.sampled_from([0, 0, 1, 2]))
    def schedule(self, fails_at: int, swap_fails: int = 0) -> None:
        # Admission that leaves no room for growth is what makes preemptions.
        self.rig.scheduler._builder._growth.tokens = self.growth
        failures = self.pool.num_failures
        if swap_fails:
            self.host_pool.arm(swap_fails)
        if fails_at:
            self.pool.arm(fails_at)
        try:
            self.in_flight = self.rig.plan()
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
        if self.in_flight is not None:
            self.check_plan(self.in_flight)

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

    @precondition(lambda self: self.in_flight is not None)
    @rule()
    def land(self) -> None:
        plan, self.in_flight = self.in_flight, None
        assert plan is not None
        self.rig.land(plan)

    @precondition(lambda self: self.in_flight is not None)
    @rule(pick=PICK)
    def land_with_a_bad_row(self, pick: int) -> None:
        plan, self.in_flight = self.in_flight, None
        assert plan is not None
        if not plan.reqs:
            self.rig.land(plan)
            return
        row = pick % len(plan.reqs)
        self.failed.add(plan.reqs[row].req_id)
        self.rig.land(plan, {row: "not a number"})

    @precondition(lambda self: self.in_flight is not None)
    @rule()
    def fail(self) -> None:
        plan, self.in_flight = self.in_flight, None
        assert plan is not None
        carried = {row.req_id for row in plan.reqs}
        before = set(self.rig.finals)
        self.failed |= carried
        self.rig.fail(plan)
        assert carried <= set(self.rig.finals) - before
        swapped = {swap.req_id for swap in plan.swap_ins}
        assert swapped <= set(self.rig.finals) - before
        self.failed |= swapped
        copied = set(self.rig.finals) - before - carried - swapped - self.asked_to_end
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
        if self.in_flight is not None:
            self.land()
        self.rig.drain(max_steps=2000)
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
        expected, got = self.rig.expected(name), self.rig.tokens[name]
        assert 0 <= final.cached_len < final.prompt_len
        assert got == expected[: len(got)]
        if final.finish_reason in SERVED:
            assert got == expected
        elif final.finish_reason is FinishReason.ABORT:
            assert name in self.asked_to_end
        else:
            assert name in self.failed
            assert final.error


def play(machine: SchedulerMachine, dice: random.Random, num_rules: int) -> None:
    """Add and step, as drawn by `dice`, then step until nothing is left to do."""
    for turn in count():
        prompt = tuple(dice.choices((0, 1), k=dice.randint(1, 14)))
        if turn >= num_rules and not machine.rig.scheduler.has_work:
            return
        if turn < num_rules and dice.random() < 0.4:
            machine.add(prompt, dice.randint(1, 10), dice.choice((0, 0, 1)), Namespace(), ())
        machine.schedule(0)
        if machine.in_flight is not None:
            machine.land()


def test_whichever_allocation_fails_every_request_is_served_as_if_alone() -> None:
    for k in count(1):
        machine = SchedulerMachine()
        machine.start(3, 16, True, "lpm", 4, 12, 5)
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
        machine.start(3, 12, True, "fcfs", 4, 12, 5, mode, 20)
        machine.host_pool.arm(k)
        play(machine, random.Random(3), num_rules=60)
        machine.teardown()
        if machine.host_pool.num_failures == 0:
            break
    assert k > 5, "too few swaps to mean anything"


TestScheduler = SchedulerMachine.TestCase
