"""Whole runs, line by line, against files that are read as code.

A line is the state in a step, then its plan: the copies, then each request with the tokens it
computes and its block table. Steps in which only tokens were added are left out. To
accept a change of behaviour:

    UPDATE_GOLDEN=1 python -m pytest tests/unit/core/test_scheduler_traces.py
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from radixserve.types import ReqId, unpack_ids
from tests.kit.builders import Rig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from radixserve.core.plan import BlockSwap, ScheduledReq, StepPlan

GOLDEN = Path(__file__).parents[2] / "golden"
DOCUMENT = list(range(10, 20))
"""Two blocks of four, and two tokens."""


def row_line(row: ScheduledReq) -> str:
    first, end = row.start, row.start + row.extend_len
    sampled = " -> token" if row.sampling is not None else ""
    return f"    {row.req_id} computes [{first}, {end}) in {unpack_ids(row.block_table)}{sampled}"


def swap_line(swap: BlockSwap, verb: str) -> str:
    blocks, host_blocks = unpack_ids(swap.blocks), unpack_ids(swap.host_blocks)
    return f"    {verb} {swap.req_id}: blocks {blocks}, host blocks {host_blocks}"


def plan_lines(plan: StepPlan) -> Iterator[str]:
    for swap in plan.swap_outs:
        yield swap_line(swap, "swap out")
    for swap in plan.swap_ins:
        yield swap_line(swap, "swap in")
    for copy in plan.copies:
        yield f"    copy {copy.num_tokens} tokens of block {copy.source} to block {copy.target}"
    yield from map(row_line, plan.reqs)


def trace(rig: Rig, script: dict[int, Callable[[], object]]) -> Iterator[str]:
    """Run until idle; `script` says what happens before which step."""
    step, state = 0, ""
    while rig.scheduler.has_work or step <= max(script):
        script.get(step, lambda: None)()
        plan = rig.plan()
        if state != repr(rig.scheduler):
            state = repr(rig.scheduler)
            yield f"{step} {state}"
            yield from plan_lines(plan)
        ended = set(rig.finals)
        rig.land(plan)
        for name in rig.finals:
            if name not in ended:
                reason = rig.reason(name)
                assert reason is not None
                yield f"    {name} ends: {reason.value}, {rig.finals[name].cached_len} cached"
        rig.now += 1.0
        step += 1
    yield f"idle {rig.scheduler!r}"


def sharing() -> Iterator[str]:
    """Two followers wait for their leader, then copy its partial tail; a fork copies its parent."""
    rig = Rig(num_blocks=20, block_size=4, max_num_batched_tokens=8, max_num_seqs=4)

    def three_arrive() -> None:
        rig.add("leader", [*DOCUMENT, 50], max_tokens=6)
        rig.add("second", [*DOCUMENT, 60], max_tokens=2)
        rig.add("third", [*DOCUMENT, 70], max_tokens=2)

    def fork() -> None:
        prompt = unpack_ids(rig.req("leader").tokens)
        rig.add("fork", [*prompt, 80], max_tokens=2, fork_of="leader")

    yield from trace(rig, {0: three_arrive, 4: fork})


def preemption() -> Iterator[str]:
    """Two grow until the pool is full; the younger gives way and resumes from the tree."""
    rig = Rig(num_blocks=10, block_size=16, max_num_seqs=4, max_num_batched_tokens=64)

    def two_arrive() -> None:
        rig.add("elder", [1, 2, 3, 4, 5], max_tokens=140)
        rig.add("younger", [6, 7, 8, 9, 0], max_tokens=140)

    yield from trace(rig, {0: two_arrive})


def swap() -> Iterator[str]:
    """Two grow until the pool is full; the younger is saved in host memory and resumes."""
    rig = Rig(
        num_blocks=10,
        block_size=16,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        host_blocks=8,
        preemption_mode="swap",
    )

    def two_arrive() -> None:
        rig.add("elder", [1, 2, 3, 4, 5], max_tokens=140)
        rig.add("younger", [6, 7, 8, 9, 0], max_tokens=140)

    yield from trace(rig, {0: two_arrive})


def chunks_and_ends() -> Iterator[str]:
    """Chunks beside decodes, a short prompt that passes, an abort in flight, an eviction."""
    rig = Rig(num_blocks=12, block_size=4, max_num_batched_tokens=8, max_num_seqs=4)

    def start() -> None:
        rig.add("decoding", [1, 2, 3], max_tokens=9)

    def two_arrive() -> None:
        rig.add("long", list(range(100, 124)), max_tokens=2)
        rig.add("short", [7, 7], max_tokens=1)

    def abort() -> None:
        rig.scheduler.abort(ReqId("long"))

    def arrive_again() -> None:
        rig.add("again", list(range(100, 130)), max_tokens=18)

    yield from trace(rig, {0: start, 1: two_arrive, 3: abort, 4: arrive_again})


def mix() -> Iterator[str]:
    """Warm, cold and urgent: the sweep finishes the warm, each third turn goes to the oldest."""
    rig = Rig(
        num_blocks=24,
        block_size=4,
        max_num_seqs=1,
        max_num_batched_tokens=16,
        schedule_policy="sweep",
        aged_every=3,
    )

    def warm_up() -> None:
        rig.add("first", [*DOCUMENT, 50], max_tokens=2)

    def many_arrive() -> None:
        rig.add("cold", [90, 91, 92], max_tokens=2)
        for i in range(4):
            rig.add(f"warm{i}", [*DOCUMENT, 60 + i], max_tokens=2)

    def urgent_arrives() -> None:
        rig.add("urgent", [95, 96, 97], max_tokens=1, priority=1)

    yield from trace(rig, {0: warm_up, 1: many_arrive, 4: urgent_arrives})


@pytest.mark.parametrize("story", [sharing, preemption, swap, chunks_and_ends, mix])
def test_the_run_is_the_recorded_one(story: Callable[[], Iterator[str]]) -> None:
    path = GOLDEN / f"scheduler_{story.__name__}.txt"
    lines = [f"# {story.__doc__}", *story()]
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    assert lines == path.read_text(encoding="utf-8").splitlines()
