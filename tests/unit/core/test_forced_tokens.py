"""Tokens that a grammar forces: appended like sampled ones, computed several in a step."""

from __future__ import annotations

import pytest

from radixserve.types import FinishReason
from tests.kit.builders import Rig

MAX_FORCED = 5


def make_rig(**settings: object) -> Rig:
    fields: dict[str, object] = {"num_blocks": 64, "block_size": 4, "max_forced": MAX_FORCED}
    return Rig(**(fields | settings))  # type: ignore[arg-type]


def num_steps_alone(rig: Rig, name: str) -> int:
    """Samplings that a request's output takes."""
    output, prefix, count = rig.expected(name), tuple(range(3)), 0
    while len(prefix) - 3 < len(output):
        prefix, count = (*prefix, *rig.runner.next_tokens(prefix)), count + 1
    return count


def test_forced_tokens_cost_no_step_of_their_own() -> None:
    rig = make_rig()
    rig.add("a", range(3), max_tokens=40)

    steps = rig.drain()

    rig.assert_all_as_if_alone()
    assert steps == num_steps_alone(rig, "a") < 40
    assert rig.finals["a"].forced_len == 40 - steps


def test_every_token_but_the_last_is_computed_once() -> None:
    rig = make_rig()
    for i in range(5):
        rig.add(f"r{i}", [100 * i, 1, 2], max_tokens=30)

    rig.drain()

    rig.assert_all_as_if_alone()
    unseen = sum(30 + 3 - final_computed(rig, f"r{i}") for i in range(5))
    assert rig.runner.computed_tokens == 5 * 33 - unseen
    assert rig.scheduler.counters.output_tokens == 5 * 30


def final_computed(rig: Rig, name: str) -> int:
    """Tokens before the last sampling: what came with it was never computed."""
    spec = rig.specs[name]
    prefix: tuple[int, ...] = (100 * int(name[1:]), 1, 2)
    while True:
        longer = (*prefix, *rig.runner.next_tokens(prefix))
        if len(longer) - spec.prompt_len >= spec.params.max_tokens:
            return len(prefix)
        prefix = longer


@pytest.mark.parametrize(("seats", "budget"), [(1, 1), (2, 3), (6, 6), (6, 7), (4, 16)])
def test_decodes_with_many_forced_tokens_stay_within_the_budget(seats: int, budget: int) -> None:
    rig = make_rig(max_num_seqs=seats, max_num_batched_tokens=budget)
    for i in range(7):
        rig.add(f"r{i}", [i, 1, 2], max_tokens=12)

    while rig.scheduler.has_work:
        running = [req for req in rig.scheduler.queues.running.values() if req.is_decoding]
        plan = rig.step()
        assert 0 < plan.num_tokens <= budget
        # Nobody who decodes sits a step out, however much others were forced.
        assert {req.req_id for req in running} <= {row.req_id for row in plan.reqs}

    rig.assert_all_as_if_alone()


@pytest.mark.parametrize("limit", range(1, 12))
def test_the_limit_cuts_forced_tokens_off(limit: int) -> None:
    rig = make_rig()
    rig.add("a", range(3), max_tokens=limit)

    rig.drain()

    assert len(rig.tokens["a"]) == limit
    assert rig.reason("a") is FinishReason.LENGTH
    rig.assert_all_as_if_alone()


def test_a_stop_token_among_forced_ones_ends_the_output_there() -> None:
    rig = make_rig()
    rig.add("probe", range(3), max_tokens=30)
    rig.drain()
    first = rig.runner.next_tokens((0, 1, 2))
    prefix: tuple[int, ...] = (0, 1, 2)
    while len(first) < 3 or first[1] in prefix[3:]:
        prefix = (*prefix, *first)
        first = rig.runner.next_tokens(prefix)

    rig.add("cut", range(3), max_tokens=100, stop=[first[1]])
    rig.drain()

    assert rig.tokens["cut"] == [*prefix[3:], *first[:2]]
    assert rig.reason("cut") is FinishReason.STOP
    assert rig.scheduler.stats().private_blocks == 0


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_a_small_pool_changes_no_forced_token(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixserve.core.admission.MIN_GROWTH_TOKENS", 0)
    rig = make_rig(num_blocks=24, host_blocks=60, preemption_mode=mode, max_num_batched_tokens=64)
    for i in range(6):
        rig.add(f"r{i}", [i, 1, 2], max_tokens=60)

    rig.drain()

    assert rig.scheduler.counters.preemptions > 0
    rig.assert_all_as_if_alone()


def test_a_child_goes_on_after_forced_tokens() -> None:
    rig = make_rig(block_size=16)
    rig.add("parent", range(3), max_tokens=9, is_fork_point=True)
    rig.drain()
    tokens = [0, 1, 2, *rig.tokens["parent"]]
    parent = rig.scheduler.fork_points.find(rig.specs["parent"].req_id)
    assert parent is not None
    before = rig.runner.computed_tokens

    rig.add("child", [*tokens, 7], fork_of="parent", max_tokens=1)
    rig.drain()

    assert rig.runner.computed_tokens - before == len(tokens) + 1 - parent.computed_len
    rig.assert_all_as_if_alone()
