"""What one step costs the scheduler while many requests run and wait."""

from __future__ import annotations

import gc
import random
import time
from array import array
from typing import TYPE_CHECKING

from benchmarks.core_rows import Row, make_row, progress
from radixserve.config import SchedulerConfig
from radixserve.core.admission import MIN_GROWTH_TOKENS
from radixserve.core.plan import StepResult
from radixserve.core.prefix_cache import PrefixCache
from radixserve.core.req import ReqSpec
from radixserve.core.scheduler import Scheduler
from radixserve.types import ReqId, SamplingParams, pack_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

BLOCK_SIZE = 16


class Decoding:
    """A scheduler with 64 requests whose prompts have been computed, in a pool of just their size.

    Args:
        steps: Tokens that each of them will produce.
        stagger: Prompts differ in length by up to a block, so that their blocks fill in
            different steps; else all of them publish a block in the same step.
        num_waiting: Requests that wait for memory meanwhile.
    """

    NUM_RUNNING = 64
    PROMPT_LEN = 1000

    def __init__(self, *, steps: int, stagger: bool, num_waiting: int, dice: random.Random) -> None:
        self._dice = dice
        blocks_each = -(-(self.PROMPT_LEN + BLOCK_SIZE + steps) // BLOCK_SIZE)
        cache = PrefixCache(num_blocks=self.NUM_RUNNING * blocks_each, block_size=BLOCK_SIZE)
        config = SchedulerConfig(
            max_num_seqs=self.NUM_RUNNING + 1,
            max_num_batched_tokens=self.NUM_RUNNING * (self.PROMPT_LEN + BLOCK_SIZE),
        )
        self.scheduler = Scheduler(cache, config, max_model_len=1 << 20)
        for i in range(self.NUM_RUNNING):
            self._add(f"r{i}", self.PROMPT_LEN + (i % BLOCK_SIZE if stagger else 0), steps)
        self.step()
        for i in range(num_waiting):
            self._add(f"w{i}", self.PROMPT_LEN, steps)
        self.step()

    def _add(self, name: str, prompt_len: int, max_tokens: int) -> None:
        ids = array("I", array("H", self._dice.randbytes(2 * prompt_len))).tobytes()
        params = SamplingParams(max_tokens=max_tokens, seed=0)
        self.scheduler.add(ReqSpec(req_id=ReqId(name), prompt=ids, params=params))

    def step(self) -> int:
        """Do one step; return the nanoseconds of schedule and update together."""
        start = time.perf_counter_ns()
        plan = self.scheduler.schedule(0.0)
        scheduled = time.perf_counter_ns() - start
        tokens = [self._dice.randrange(1 << 16) for _ in plan.reqs]
        result = StepResult(plan.step, tuple(tokens))
        start = time.perf_counter_ns()
        self.scheduler.update(plan, result)
        return time.perf_counter_ns() - start + scheduled

    def step_ahead(self) -> int:
        """Do one step with the next one planned before its result; return the nanoseconds of both
        parts together."""
        plan = self.scheduler.in_flight or self.scheduler.schedule(0.0)
        start = time.perf_counter_ns()
        assert self.scheduler.schedule_ahead(0.0) is not None
        planned = time.perf_counter_ns() - start
        result = StepResult(plan.step, tuple(self._dice.randrange(1 << 16) for _ in plan.reqs))
        start = time.perf_counter_ns()
        self.scheduler.update(plan, result)
        return time.perf_counter_ns() - start + planned

    @classmethod
    def measure(
        cls,
        samples: int,
        *,
        stagger: bool,
        num_waiting: int,
        dice: random.Random,
        is_ahead: bool = False,
    ) -> list[int]:
        """Time steps in which all 64 decode, over as many fresh schedulers as that takes."""
        times: list[int] = []
        steps = MIN_GROWTH_TOKENS - BLOCK_SIZE
        while len(times) < samples:
            decoding = cls(
                steps=MIN_GROWTH_TOKENS, stagger=stagger, num_waiting=num_waiting, dice=dice
            )
            gc.collect()
            gc.disable()
            try:
                step = decoding.step_ahead if is_ahead else decoding.step
                times += [step() for _ in range(steps)]
            finally:
                gc.enable()
            assert len(decoding.scheduler.queues.running) == cls.NUM_RUNNING
            assert decoding.scheduler.counters.preemptions == 0
        return times


def measure_scheduler(samples: int, seed: int) -> list[Row]:
    """One step with 64 decodes, under three circumstances."""
    rows = []
    for operation, stagger, num_waiting, is_ahead in (
        ("schedule + update, 64 decodes", True, 0, False),
        ("the same, blocks fill in lockstep", False, 0, False),
        ("the same, 200 waiting for memory", True, 200, False),
        ("the same, a step ahead", True, 0, True),
    ):
        progress(f"{operation} ...")
        times = Decoding.measure(
            samples,
            stagger=stagger,
            num_waiting=num_waiting,
            dice=random.Random(seed),
            is_ahead=is_ahead,
        )
        rows.append(make_row(operation, None, times))
    return rows


class Crowd:
    """256 running requests, 4,096 waiting ones, and 64 prefixes that they share.

    Args:
        policy: The order of the queue.
        is_short: Whether there is only enough memory for the running ones, so that every step
            looks in vain for somebody to admit; else it is the seats that are all taken.
        dice: For the tokens.
    """

    NUM_RUNNING = 256
    NUM_WAITING = 4096
    NUM_PREFIXES = 64
    PREFIX_LEN = 200
    OWN_LEN = 100
    OUTPUT_LEN = 400
    NUM_TENANTS = 7

    def __init__(self, policy: str, *, is_short: bool, dice: random.Random) -> None:
        self._dice = dice
        blocks_each = (self.OWN_LEN + self.OUTPUT_LEN) // BLOCK_SIZE
        num_blocks = self.NUM_RUNNING * (blocks_each - 5 if is_short else 100)
        config = SchedulerConfig(
            max_num_seqs=self.NUM_RUNNING + (44 if is_short else 0),
            schedule_policy=policy,
            max_queue_len=2 * self.NUM_WAITING,
        )
        cache = PrefixCache(num_blocks=num_blocks, block_size=BLOCK_SIZE)
        self.scheduler = Scheduler(cache, config, max_model_len=4096)
        prefixes = [self._ids(self.PREFIX_LEN) for _ in range(self.NUM_PREFIXES)]
        for i in range(self.NUM_RUNNING + self.NUM_WAITING):
            self.scheduler.add(
                ReqSpec(
                    req_id=ReqId(str(i)),
                    prompt=pack_ids(dice.choice(prefixes) + self._ids(self.OWN_LEN)),
                    params=SamplingParams(max_tokens=self.OUTPUT_LEN, seed=0),
                    tenant=str(i % self.NUM_TENANTS),
                )
            )

    def _ids(self, length: int) -> list[int]:
        return [self._dice.randrange(50_000) for _ in range(length)]

    def step(self) -> tuple[int, int]:
        """Do one step; return its requests and the nanoseconds of schedule and update."""
        start = time.perf_counter_ns()
        plan = self.scheduler.schedule(0.0)
        scheduled = time.perf_counter_ns() - start
        tokens = tuple(self._dice.randrange(50_000) if req.sampling else None for req in plan.reqs)
        start = time.perf_counter_ns()
        self.scheduler.update(plan, StepResult(plan.step, tokens))
        return len(plan.reqs), time.perf_counter_ns() - start + scheduled

    def times(self, num_steps: int) -> list[int]:
        """Nanoseconds of the steps in which at least 200 requests took part."""
        gc.collect()
        gc.disable()
        try:
            steps = [self.step() for _ in range(num_steps)]
        finally:
            gc.enable()
        return [time_ns for num_reqs, time_ns in steps if num_reqs >= 200]


def measure_crowd(policies: Sequence[str], seed: int) -> list[Row]:
    """One step of a crowd under each policy, with memory to spare and without."""
    rows = []
    for policy in policies:
        for is_short in (False, True):
            name = f"crowd, {policy}{', memory short' if is_short else ''}"
            progress(f"schedule + update: {name} ...")
            crowd = Crowd(policy, is_short=is_short, dice=random.Random(seed))
            rows.append(make_row(name, None, crowd.times(420)))
    return rows
