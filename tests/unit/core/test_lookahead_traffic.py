"""Steps ahead under everything that can happen between them: long random traffic of decodes.

The scheduler's own state machine plans ahead too, but seldom gets far before somebody arrives.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.unit.core.test_scheduler_machine import VOCAB_SIZE, SchedulerMachine

if TYPE_CHECKING:
    from collections.abc import Callable

NUM_TURNS = 160


class Traffic:
    """Requests that come and go around a machine that is ahead wherever it can be."""

    def __init__(self, seed: int) -> None:
        self.dice = dice = random.Random(seed)
        self.seen: Counter[str] = Counter()
        self.machine = SchedulerMachine()
        self.machine.start(
            block_size=dice.choice((1, 2, 3, 4)),
            num_blocks=dice.choice((10, 16, 24, 40)),
            shares=dice.random() < 0.8,
            policy=dice.choice(("fcfs", "lpm", "priority", "fair")),
            seats=dice.randint(2, 6),
            spare_tokens=dice.randint(0, 14),
            chunk_len=dice.choice((None, 3)),
            mode=dice.choice(("recompute", "swap")),
            host_blocks=dice.choice((0, 30)),
            growth=dice.choice((0, 64)),
        )

    def play(self) -> None:
        """Mostly decodes; now and then something else, while up to two steps are in flight."""
        for _ in range(NUM_TURNS):
            if self.machine.in_flight is None:
                self.machine.schedule(0)
            self.look_ahead()
            self.something_else()
            if self.machine.in_flight is not None:
                self.machine.land()
        self.machine.teardown()

    def look_ahead(self) -> None:
        scheduler = self.machine.rig.scheduler
        before = self.machine.rig.num_ahead
        self.machine.look_ahead(self.dice.choice((0, 0, 0, 0, 1)))
        if self.machine.rig.num_ahead > before:
            rows = {row.req_id for flight in scheduler.flights for row in flight.plan.reqs}
            self.seen["ahead"] += 1
            self.seen["while others wait"] += bool(scheduler.queues.waiting)
            last = list(scheduler.flights)[-1].plan
            self.seen["without those that end"] += len(last.reqs) < len(rows)
        for flight in scheduler.flights:
            self.seen["void rows"] += len(list(flight.live_rows())) < len(flight.reqs)

    def something_else(self) -> None:
        dice, machine = self.dice, self.machine
        what = dice.random()
        if what < 0.12:
            self.arrive()
        elif what < 0.15 and machine.rig.specs:
            machine.abort(dice.randrange(1 << 16))
        elif what < 0.17 and machine.rig.finals:
            machine.use_a_name_again(
                dice.randrange(1 << 16), self.prompt(), dice.randint(1, 12), is_fork_point=False
            )
        elif what < 0.19 and machine.rig.scheduler.queues.running:
            machine.fork(dice.randrange(1 << 16), [1], 6, is_fork_point=dice.random() < 0.5)
        elif what < 0.21 and machine.kept_names:
            machine.go_on(dice.randrange(1 << 16), [0], 0, 5, 2, is_fork_point=False)
        elif what < 0.23:
            machine.flush()
        elif what < 0.25:
            self.go_wrong(machine)

    def go_wrong(self, machine: SchedulerMachine) -> None:
        wrong: tuple[Callable[[], None], ...] = (
            machine.fail,
            lambda: machine.land_with_a_bad_row(self.dice.randrange(1 << 16)),
        )
        if machine.in_flight is not None:
            self.dice.choice(wrong)()

    def arrive(self) -> None:
        for _ in range(self.dice.choice((1, 1, 1, 4))):
            stops = self.dice.random() < 0.4
            self.machine.add(
                self.prompt(),
                self.dice.randint(1, 24),
                self.dice.choice((0, 0, 0, 1)),
                stop=(VOCAB_SIZE - 1,) if stops else (),
                min_tokens=self.dice.randint(0, 12),
                patience=self.dice.choice((None, None, 9.0)),
                is_fork_point=self.dice.random() < 0.2,
            )

    def prompt(self) -> tuple[int, ...]:
        return tuple(self.dice.choices((0, 1), k=self.dice.randint(1, 9)))


def test_every_request_is_served_as_if_alone_while_steps_are_ahead() -> None:
    seen: Counter[str] = Counter()
    preemptions = 0
    for seed in range(30):
        traffic = Traffic(seed)
        traffic.play()
        seen += traffic.seen
        preemptions += traffic.machine.rig.scheduler.stats().preemptions

    rare = {
        what: seen[what]
        for what in ("ahead", "while others wait", "without those that end", "void rows")
        if seen[what] < 30
    }
    assert not rare, f"too seldom to mean anything: {rare} of {seen}"
    assert preemptions > 10


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_request_is_served_as_if_alone_in_long_traffic() -> None:
    for seed in range(1000, 1400):
        Traffic(seed).play()
