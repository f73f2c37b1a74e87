"""A step ahead: when one is planned, and what becomes of it when the step before ends somebody."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from radixserve.core.invariants import check
from radixserve.core.plan import StepResult
from radixserve.errors import InvariantError
from radixserve.types import FinishReason, ReqId, unpack_ids
from tests.kit.builders import Rig, make_spec

if TYPE_CHECKING:
    from radixserve.core.plan import StepPlan


def decoding(rig: Rig, **requests: list[int]) -> None:
    """Step until each of these requests, of at most 12 tokens, has its first token."""
    for name, prompt in requests.items():
        rig.add(name, prompt, max_tokens=12)
    rig.step()
    assert all(rig.tokens[name] for name in requests)


def stop_after(rig: Rig, prompt: list[int], num_tokens: int) -> int:
    """The token that a request on `prompt` produces at that place, and not before."""
    spec = make_spec("alone", prompt, max_tokens=num_tokens)
    prefix = list(unpack_ids(spec.prompt))
    for _ in range(num_tokens):
        prefix.append(rig.runner.next_tokens(prefix)[0])
    assert prefix[-1] not in prefix[len(prompt) : -1]
    return prefix[-1]


def two_in_flight(rig: Rig) -> tuple[StepPlan, StepPlan]:
    """Plan a step of decodes and the one ahead."""
    plan = rig.plan()
    ahead = rig.plan_ahead()
    assert ahead is not None
    return plan, ahead


def assert_all_free(rig: Rig) -> None:
    assert not rig.scheduler.has_work
    assert rig.cache.num_private_blocks == 0
    rig.cache.flush()
    assert rig.cache.pool.num_free == rig.cache.pool.num_blocks


# -- how far ahead -----------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 3])
def test_every_plain_decode_is_planned_ahead_the_first_behind_the_prompt(number: int) -> None:
    rig = Rig(num_blocks=40)
    for place in range(number):
        rig.add(f"r{place}", [place, 2, 3, 4, 5], max_tokens=9)

    rig.drain_ahead()

    rig.assert_all_as_if_alone()
    assert rig.num_ahead == 8  # of 9 steps; the prompt's is not
    assert rig.scheduler.stats().steps == 9
    assert rig.scheduler.stats().steps_ahead == 8
    assert rig.runner.computed_tokens == number * (5 + 8)
    assert_all_free(rig)


def test_whoever_ends_at_its_limit_is_left_out_of_the_step_ahead() -> None:
    rig = Rig(num_blocks=40)
    rig.add("short", [1, 2, 3], max_tokens=3)
    rig.add("long", [7, 8, 9], max_tokens=6)
    rig.step()

    plan = rig.plan()
    assert {row.req_id for row in plan.reqs} == {"short", "long"}
    first = rig.plan_ahead()
    rig.land(plan)
    second = rig.plan_ahead()

    assert first is not None
    assert second is not None
    assert {row.req_id for row in first.reqs} == {"short", "long"}
    assert [row.req_id for row in second.reqs] == ["long"]
    rig.land(first)
    assert rig.reason("short") is FinishReason.LENGTH
    rig.drain_ahead()
    rig.assert_all_as_if_alone()
    assert_all_free(rig)


def test_a_row_ahead_says_whose_token_it_takes() -> None:
    rig = Rig(num_blocks=40)
    decoding(rig, a=[1, 2], b=[3, 4, 5])

    plan, ahead = two_in_flight(rig)

    assert ahead.follows == plan.step == ahead.step - 1
    for row in ahead.reqs:
        assert row.takes is not None
        before = plan.reqs[row.takes]
        assert row.req_id == before.req_id
        assert row.token_ids == bytes(4)
        assert row.start == before.start + 1
        assert row.sampling is not None
        assert row.sampling.output_len == 2


def test_not_more_than_one_step_is_ahead() -> None:
    rig = Rig(num_blocks=40)
    decoding(rig, a=[1, 2])
    assert rig.plan_ahead() is None  # nothing is in flight

    two_in_flight(rig)

    assert rig.plan_ahead() is None


def test_answers_come_in_order_and_nothing_is_scheduled_between() -> None:
    rig = Rig(num_blocks=40)
    decoding(rig, a=[1, 2])
    plan, ahead = two_in_flight(rig)

    with pytest.raises(InvariantError) as out_of_order:
        rig.scheduler.update(ahead, StepResult(ahead.step, (1,)))
    with pytest.raises(InvariantError) as too_early:
        rig.scheduler.schedule(rig.now)
    rig.land(plan)
    with pytest.raises(InvariantError) as still_too_early:
        rig.scheduler.schedule(rig.now)

    assert {e.value.number for e in (out_of_order, too_early, still_too_early)} == {8}
    rig.drain_ahead()
    rig.assert_all_as_if_alone()


# -- when it cannot be -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"logprobs": 0},
        {"repetition_penalty": 1.1},
        {"bad_words": ((1, 2),)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_no_step_is_ahead_of_one_whose_tokens_the_host_must_see(changes: dict[str, Any]) -> None:
    rig = Rig(num_blocks=40)
    spec = make_spec("a", [1, 2, 3], max_tokens=8)
    rig.specs["a"] = replace(spec, params=replace(spec.params, **changes))
    rig.scheduler.add(rig.specs["a"])
    rig.add("b", [4, 5, 6], max_tokens=4)

    rig.drain_ahead()

    rig.assert_all_as_if_alone()
    assert rig.num_ahead == 0


def test_no_step_is_ahead_of_a_prompt_or_of_whoever_arrives() -> None:
    rig = Rig(num_blocks=40, max_num_batched_tokens=64, prefill_chunk_len=2)
    decoding(rig, a=[1])
    rig.add("b", [3, 4, 5, 6, 7])
    plan = rig.plan()
    assert {row.req_id: row.extend_len for row in plan.reqs} == {"a": 1, "b": 2}
    assert rig.plan_ahead() is None
    rig.land(plan)
    rig.step()
    rig.step()

    plan, ahead = two_in_flight(rig)
    rig.add("c", [8])
    rig.land(plan)

    assert rig.plan_ahead() is None
    rig.land(ahead)
    assert {row.req_id for row in rig.plan().reqs} == {"a", "b", "c"}


def test_a_deadline_is_kept_although_steps_are_ahead() -> None:
    rig = Rig(num_blocks=400)
    rig.add("a", [1, 2, 3], max_tokens=500, deadline=20.0)

    for _ in range(25):
        rig.step_ahead()

    assert rig.reason("a") is FinishReason.TIMEOUT
    assert rig.num_ahead > 10
    assert len(rig.tokens["a"]) <= 22
    rig.drain_ahead()
    assert_all_free(rig)


def test_an_abort_takes_effect_after_the_steps_in_flight() -> None:
    rig = Rig(num_blocks=40)
    decoding(rig, a=[1, 2], b=[3, 4])
    plan, ahead = two_in_flight(rig)

    rig.scheduler.abort(ReqId("a"))
    rig.land(plan)
    assert rig.plan_ahead() is None
    rig.land(ahead)
    rig.step_ahead()

    assert rig.reason("a") is FinishReason.ABORT
    assert rig.tokens["a"] == rig.expected("a")[:3]
    rig.drain_ahead()
    assert rig.tokens["b"] == rig.expected("b")
    assert_all_free(rig)


def test_a_step_is_ahead_of_one_that_copies() -> None:
    rig = Rig(num_blocks=40)
    decoding(rig, a=[1, 2, 3, 4, 5, 6])
    rig.add("b", [1, 2, 3, 4, 5, 6], fork_of="a")

    plan, ahead = two_in_flight(rig)

    assert plan.copies
    assert not ahead.copies
    assert [row.start for row in ahead.reqs] == [row.start + 1 for row in plan.reqs]
    rig.land(plan)
    rig.drain_ahead()
    rig.assert_all_as_if_alone()
    assert_all_free(rig)


def test_a_failed_step_that_copies_takes_the_step_ahead_with_it() -> None:
    rig = Rig(num_blocks=40)
    decoding(rig, a=[1, 2, 3, 4, 5, 6])
    rig.add("b", [1, 2, 3, 4, 5, 6], fork_of="a")
    plan, ahead = two_in_flight(rig)

    rig.fail(plan)
    rig.land(ahead)

    assert {rig.reason(name) for name in "ab"} == {FinishReason.ERROR}
    assert_all_free(rig)


def test_a_step_is_ahead_of_the_ends_of_prompts_but_not_of_their_middles() -> None:
    rig = Rig(num_blocks=40, prefill_chunk_len=8)
    rig.add("a", range(12), max_tokens=3)

    first = rig.plan()
    assert [row.sampling for row in first.reqs] == [None]
    assert rig.plan_ahead() is None
    rig.land(first)
    last, ahead = two_in_flight(rig)

    assert [row.extend_len for row in last.reqs] == [4]
    assert [(row.start, row.takes) for row in ahead.reqs] == [(12, 0)]
    rig.land(last)
    rig.drain_ahead()
    rig.assert_all_as_if_alone()


def test_nobody_is_preempted_for_a_step_ahead() -> None:
    rig = Rig(num_blocks=8, block_size=2)
    rig.scheduler._builder.growth.tokens = 0
    decoding(rig, a=[1, 2, 3], b=[5, 6, 7])

    while rig.scheduler.has_work:
        plan = rig.scheduler.in_flight or rig.plan()
        before = rig.scheduler.stats().preemptions
        rig.plan_ahead()
        assert rig.scheduler.stats().preemptions == before
        rig.land(plan)

    rig.assert_all_as_if_alone()
    assert rig.num_ahead > 0
    assert rig.scheduler.stats().preemptions > 0
    assert_all_free(rig)


def test_blocks_are_taken_for_all_that_are_ahead_or_for_none() -> None:
    rig = Rig(num_blocks=5, block_size=2)
    rig.scheduler._builder.growth.tokens = 0
    for name in "ab":
        rig.add(name, [ord(name), 2, 3], max_tokens=6)
    rig.step()
    plan = rig.plan()  # fills the two blocks of each; one is left

    assert len(plan.reqs) == 2
    assert rig.plan_ahead() is None
    assert rig.cache.pool.num_free == 1
    rig.land(plan)
    rig.drain_ahead()
    rig.assert_all_as_if_alone()


# -- while others wait -------------------------------------------------------------------------


def test_a_full_house_runs_ahead_until_a_seat_is_free() -> None:
    rig = Rig(num_blocks=40, max_num_seqs=2)
    rig.add("a", [1, 2], max_tokens=5)
    rig.add("b", [3, 4], max_tokens=9)
    rig.add("c", [5, 6], max_tokens=3)
    first_with_c = None

    while rig.scheduler.has_work:
        rig.step_ahead()
        if first_with_c is None and rig.is_running("c"):
            first_with_c = rig.scheduler.stats().steps

    assert first_with_c == 7  # c's prompt is step 6, at once after a's five; one is ahead of it
    assert rig.num_ahead == 4 + 3  # a's and b's decodes, and those after c's prompt
    rig.assert_all_as_if_alone()


def test_a_full_pool_runs_ahead_until_somebody_ends() -> None:
    rig = Rig(num_blocks=8, block_size=2)
    decoding(rig, a=[1, 2, 3])
    rig.add("big", list(range(20, 34)), max_tokens=2)
    rig.step()
    assert not rig.is_running("big")

    before = rig.num_ahead
    while rig.scheduler.has_work:
        rig.step_ahead()

    assert rig.num_ahead - before >= 9
    assert rig.scheduler._builder.num_when_full is None
    rig.assert_all_as_if_alone()
    assert_all_free(rig)


def test_whoever_is_more_urgent_than_somebody_running_is_not_kept_waiting() -> None:
    rig = Rig(num_blocks=40, max_num_seqs=1)
    decoding(rig, low=[1, 2])
    plan, ahead = two_in_flight(rig)
    rig.add("high", [3, 4], priority=1, max_tokens=2)
    rig.land(plan)
    rig.land(ahead)

    rig.step_ahead()

    assert rig.is_running("high")
    rig.drain_ahead()
    rig.assert_all_as_if_alone()


def test_whoever_waits_for_a_prefix_above_somebody_running_is_due_when_it_is_there() -> None:
    rig = Rig(num_blocks=60, block_size=1, max_num_seqs=2)
    rig.add("earlier", [1, 2, 3, 4], max_tokens=1)
    rig.step()
    decoding(rig, low=[7, 8])
    rig.add("leader", [1, 2, 3, 4, 5], max_tokens=9, priority=1)
    rig.add("follower", [1, 2, 3, 4, 5, 6], max_tokens=2, priority=1)

    plan = rig.plan()

    assert {row.req_id: row.extend_len for row in plan.reqs} == {"low": 1, "leader": 1}
    assert rig.plan_ahead() is None
    rig.land(plan)
    assert {row.req_id for row in rig.plan().reqs} == {"leader", "follower"}


def test_steps_ahead_are_calm_steps_to_the_growth_reserve() -> None:
    rig = Rig(num_blocks=100)
    growth = rig.scheduler._builder.growth
    growth.tokens = 256
    rig.add("a", [1], max_tokens=200)

    rig.drain_ahead()

    assert rig.num_ahead > 190
    assert growth.tokens == 64


# -- what the step before does to the step ahead -----------------------------------------------


def test_a_stop_token_makes_the_row_ahead_void() -> None:
    rig = Rig(num_blocks=40, block_size=2)
    stop = stop_after(rig, [1, 2, 3], 5)
    rig.add("stops", [1, 2, 3], max_tokens=20, stop=[stop])
    rig.add("goes on", [4, 5, 6], max_tokens=12)

    rig.drain_ahead()

    rig.assert_all_as_if_alone()
    assert rig.reason("stops") is FinishReason.STOP
    assert len(rig.tokens["stops"]) == 5
    assert rig.runner.computed_tokens == (3 + 4 + 1) + (3 + 11)
    assert_all_free(rig)


def test_a_step_ahead_of_which_every_row_is_void_is_answered_all_the_same() -> None:
    rig = Rig(num_blocks=40)
    stop = stop_after(rig, [1, 2, 3], 4)
    rig.add("a", [1, 2, 3], max_tokens=20, stop=[stop])
    while "a" not in rig.finals:
        rig.step_ahead()

    assert rig.scheduler.has_work
    assert rig.scheduler.in_flight is not None
    assert rig.plan_ahead() is None
    rig.land(rig.scheduler.in_flight)

    assert rig.tokens["a"] == rig.expected("a")
    assert_all_free(rig)


def test_a_void_row_is_not_taken_for_another_request_of_its_name() -> None:
    rig = Rig(num_blocks=40)
    stop = stop_after(rig, [1, 2, 3], 4)
    rig.add("a", [1, 2, 3], max_tokens=20, stop=[stop])
    rig.add("b", [7, 8], max_tokens=20)
    while "a" not in rig.finals:
        rig.step_ahead()
    assert rig.scheduler.in_flight is not None
    assert [row.req_id for row in rig.scheduler.in_flight.reqs] == ["a", "b"]

    del rig.finals["a"], rig.tokens["a"], rig.scores["a"]
    rig.add("a", [9, 9, 9], max_tokens=3)
    rig.drain_ahead()

    rig.assert_all_as_if_alone()
    assert_all_free(rig)


def test_equal_requests_give_their_duplicates_back_under_the_step_ahead() -> None:
    rig = Rig(num_blocks=60, block_size=2)
    for place in range(4):
        rig.add(f"r{place}", [1, 2, 3], max_tokens=11)

    named_free = 0
    while rig.scheduler.has_work:
        rig.step_ahead()
        if rig.scheduler.in_flight is not None:
            tables = [unpack_ids(row.block_table) for row in rig.scheduler.in_flight.reqs]
            free = rig.cache.pool.is_free
            named_free += any(free(block) for table in tables for block in table)  # type: ignore[arg-type]

    rig.assert_all_as_if_alone()
    assert named_free > 0, "nothing was given back under a step ahead: the test means nothing"
    assert_all_free(rig)


def test_a_failed_step_takes_the_step_ahead_with_it() -> None:
    rig = Rig(num_blocks=40)
    decoding(rig, a=[1, 2], b=[3, 4])
    plan, ahead = two_in_flight(rig)

    rig.fail(plan)
    assert {rig.reason(name) for name in "ab"} == {FinishReason.ERROR}
    assert rig.scheduler.in_flight is ahead
    rig.fail(ahead)

    assert_all_free(rig)


def test_a_failed_step_ahead_ends_those_that_still_run() -> None:
    rig = Rig(num_blocks=40)
    decoding(rig, a=[1, 2], b=[3, 4])
    plan, ahead = two_in_flight(rig)

    rig.land(plan, {0: "not a number"})
    assert list(rig.finals) == ["a"]
    rig.fail(ahead)

    assert {rig.reason(name) for name in "ab"} == {FinishReason.ERROR}
    assert len(rig.tokens["b"]) == 2
    assert_all_free(rig)


def test_a_bad_row_makes_only_its_own_row_ahead_void() -> None:
    rig = Rig(num_blocks=40)
    decoding(rig, a=[1, 2], b=[3, 4])
    plan, _ = two_in_flight(rig)

    rig.land(plan, {0: "not a number"})
    rig.drain_ahead()

    assert rig.reason("a") is FinishReason.ERROR
    assert rig.tokens["b"] == rig.expected("b")
    assert_all_free(rig)


def test_a_fork_point_that_ends_under_its_own_stop_is_kept() -> None:
    rig = Rig(num_blocks=40)
    rig.add("a", [1, 2, 3], max_tokens=4, is_fork_point=True)
    rig.step()
    rig.step()
    plan, ahead = two_in_flight(rig)

    rig.land(plan)
    rig.scheduler.abort(ReqId("a"), FinishReason.STOP)  # its text has ended with this token
    rig.land(ahead)
    rig.step()

    assert rig.reason("a") is FinishReason.LENGTH
    assert ReqId("a") in rig.scheduler.fork_points
    check(rig.scheduler)


def test_tenants_are_charged_for_live_rows_only() -> None:
    rig, without = Rig(num_blocks=40), Rig(num_blocks=40)
    stop = stop_after(rig, [1, 2, 3], 5)
    for each in (rig, without):
        each.add("a", [1, 2, 3], max_tokens=20, stop=[stop], tenant="x")
        each.add("b", [4, 5, 6], max_tokens=19, tenant="x")
    for _ in range(12):
        rig.step_ahead()
        without.step()

    assert rig.num_ahead > 5
    assert rig.scheduler.service.attained("x") == without.scheduler.service.attained("x")
