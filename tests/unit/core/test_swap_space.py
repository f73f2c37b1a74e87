"""Preempted Reqs whose KV goes to host memory and comes back, step by step."""

from __future__ import annotations

import pytest

from radixserve.core.plan import TransferCosts
from radixserve.core.prefix_cache import UnsharedCache
from radixserve.errors import InvariantError
from radixserve.types import FinishReason, ReqId, unpack_ids
from tests.kit.builders import Rig

CHEAP_COPIES = TransferCosts(block_bytes=4, copy_bytes_per_s=1e6, prefill_tokens_per_s=10.0)
DEAR_COPIES = TransferCosts(block_bytes=4, copy_bytes_per_s=1.0, prefill_tokens_per_s=1e6)


def fresh(length: int, seed: int) -> list[int]:
    """A prompt that begins like no other."""
    return [seed * 100_000 + place for place in range(length)]


def rig_with_a_victim(*, max_tokens: int = 100, **settings: object) -> Rig:
    """Two that grow until one gives way; the step that preempted it has just been planned."""
    defaults: dict[str, object] = {"host_blocks": 60, "preemption_mode": "swap", "num_blocks": 44}
    rig = Rig(block_size=4, **(defaults | settings))  # type: ignore[arg-type]
    for i in range(2):
        rig.add(f"r{i}", fresh(8, i), max_tokens=max_tokens)
    while True:
        rig.plan()
        if rig.scheduler.counters.preemptions:
            return rig
        rig.land(rig.scheduler.in_flight)  # type: ignore[arg-type]
        rig.now += 1.0


def land(rig: Rig) -> None:
    """Compute the plan in flight."""
    assert rig.scheduler.in_flight is not None
    rig.land(rig.scheduler.in_flight)
    rig.now += 1.0


def step_until_it_runs(rig: Rig, name: str = "r1") -> None:
    """Step until the victim's return has been planned, and stop before that is computed."""
    while not rig.is_running(name):
        if rig.scheduler.in_flight is not None:
            land(rig)
        rig.plan()


def finish(rig: Rig) -> None:
    """Compute the plan in flight and everything after it."""
    land(rig)
    rig.drain()


def test_the_victims_blocks_are_copied_out_in_the_step_that_takes_them() -> None:
    rig = rig_with_a_victim()
    plan = rig.scheduler.in_flight
    assert plan is not None
    saved = rig.req("r1").swapped
    assert saved is not None

    (out,) = plan.swap_outs

    assert out.req_id == "r1"
    assert unpack_ids(out.host_blocks) == list(saved.host_blocks)
    assert (saved.first_block, out.num_blocks) == (0, -(-saved.num_tokens // 4))
    assert saved.num_tokens == rig.req("r1").total_len - 1
    finish(rig)
    rig.assert_all_as_if_alone()


def test_what_the_tree_lost_comes_back_and_nothing_is_computed_twice() -> None:
    rig = rig_with_a_victim()
    saved = rig.req("r1").swapped
    assert saved is not None

    step_until_it_runs(rig)

    plan = rig.scheduler.in_flight
    assert plan is not None
    (swap_in,) = plan.swap_ins
    assert 0 < swap_in.num_blocks < len(saved.host_blocks), "what is in the tree is not copied"
    assert rig.req("r1").computed_len == saved.num_tokens
    finish(rig)
    rig.assert_all_as_if_alone()
    assert rig.runner.computed_tokens == 2 * (8 + 99)
    assert rig.scheduler.stats().recomputed_tokens == 0


def test_without_swapping_the_same_run_computes_twice() -> None:
    rig = rig_with_a_victim(preemption_mode="recompute")
    finish(rig)

    rig.assert_all_as_if_alone()
    stats = rig.scheduler.stats()
    assert stats.swapped_out_blocks == stats.swapped_in_blocks == 0
    assert stats.recomputed_tokens == rig.runner.computed_tokens - 2 * (8 + 99) > 0


def test_without_a_prefix_cache_all_of_it_comes_back() -> None:
    rig = rig_with_a_victim(cache=UnsharedCache(num_blocks=44, block_size=4))

    finish(rig)

    rig.assert_all_as_if_alone()
    stats = rig.scheduler.stats()
    assert stats.swapped_out_blocks == stats.swapped_in_blocks > 0
    assert stats.recomputed_tokens == 0


def test_a_copy_that_the_tree_made_needless_is_dropped() -> None:
    """The other one ends at once, so that the tree still has every full block."""
    rig = Rig(num_blocks=9, block_size=4, host_blocks=20, preemption_mode="swap")
    rig.add("r0", fresh(12, 0), max_tokens=6)
    rig.add("r1", fresh(12, 1), max_tokens=8)
    rig.step()
    req = rig.req("r1")
    rig.scheduler.abort(ReqId("r0"))
    swap = rig.scheduler._builder._preemptor.preempt(req, [])
    rig.scheduler.queues.preempt(req)
    assert swap is not None

    plan = rig.plan()

    assert not plan.swap_ins
    assert req.swapped is None
    assert req.computed_len == 12
    assert rig.space.pool.num_free == 20


def test_a_flush_of_the_tree_does_not_reach_what_was_saved_whole() -> None:
    rig = rig_with_a_victim()
    saved = rig.req("r1").swapped
    assert saved is not None
    land(rig)
    rig.cache.flush()

    step_until_it_runs(rig)

    plan = rig.scheduler.in_flight
    assert plan is not None
    assert [swap.num_blocks for swap in plan.swap_ins] == [len(saved.host_blocks)]
    finish(rig)
    rig.assert_all_as_if_alone()
    assert rig.scheduler.stats().recomputed_tokens == 0


def rig_with_a_shared_trunk() -> Rig:
    """The victim shares three blocks with a running one and has saved the others."""
    rig = Rig(num_blocks=40, block_size=4, host_blocks=40, preemption_mode="swap", max_num_seqs=3)
    trunk = fresh(12, 7)
    rig.add("friend", trunk + fresh(6, 8), max_tokens=9)
    rig.step()
    rig.add("victim", trunk + fresh(10, 9), max_tokens=9)
    rig.step()
    victim = rig.req("victim")
    rig.scheduler._builder._preemptor.preempt(victim, [])
    rig.scheduler.queues.preempt(victim)
    return rig


def test_only_blocks_that_nobody_else_uses_are_saved() -> None:
    saved = rig_with_a_shared_trunk().req("victim").swapped

    assert saved is not None
    assert (saved.first_block, len(saved.host_blocks), saved.num_tokens) == (3, 3, 22)


def test_a_copy_whose_beginning_is_lost_is_dropped_and_all_is_computed_again() -> None:
    rig = rig_with_a_shared_trunk()
    victim = rig.req("victim")
    rig.scheduler.abort(ReqId("friend"))
    rig.scheduler._drain_inbox()
    rig.cache.flush()
    assert rig.space.pool.num_free < 40

    plan = rig.plan()

    assert rig.is_running("victim")
    assert not plan.swap_ins
    assert victim.swapped is None
    assert victim.computed_len == 0
    assert rig.space.pool.num_free == 40
    finish(rig)
    assert rig.tokens["victim"] == rig.expected("victim")
    assert rig.scheduler.stats().recomputed_tokens == 22


@pytest.mark.parametrize("reason", [FinishReason.ABORT, FinishReason.STOP])
def test_a_request_that_ends_while_it_is_swapped_gives_its_host_blocks_back(
    reason: FinishReason,
) -> None:
    rig = rig_with_a_victim()
    land(rig)
    assert rig.space.pool.num_free < 60
    rig.scheduler.abort(ReqId("r1"), reason)

    rig.step()

    assert rig.reason("r1") is reason
    assert rig.space.pool.num_free == 60
    rig.drain()


def test_a_failed_step_does_not_count_as_having_saved_anything() -> None:
    rig = rig_with_a_victim()
    assert rig.scheduler.in_flight is not None

    rig.fail(rig.scheduler.in_flight)

    assert rig.reason("r0") is FinishReason.ERROR
    assert rig.req("r1").swapped is None
    assert rig.space.pool.num_free == 60
    rig.drain()
    assert rig.tokens["r1"] == rig.expected("r1")


def test_a_request_whose_swap_in_failed_ends_with_an_error_and_leaves_nothing() -> None:
    rig = rig_with_a_victim()
    step_until_it_runs(rig)
    plan = rig.scheduler.in_flight
    assert plan is not None
    assert plan.swap_ins
    assert rig.space.being_read

    rig.fail(plan)

    assert rig.reason("r1") is FinishReason.ERROR
    assert not rig.space.being_read
    assert rig.space.pool.num_free == 60
    rig.drain()


def test_host_blocks_that_are_being_read_are_not_given_out_before_the_answer() -> None:
    rig = rig_with_a_victim()
    step_until_it_runs(rig)
    reading = set(rig.space.being_read)

    assert reading
    assert rig.space.pool.num_free == 60 - len(reading)
    land(rig)
    assert rig.space.pool.num_free == 60


def test_a_victim_that_runs_again_in_the_same_step_from_the_tree_is_not_copied_out() -> None:
    """It gives way because of the room that it might grow into, and fits beside the urgent one."""
    rig = Rig(num_blocks=19, block_size=4, host_blocks=20, preemption_mode="swap")
    rig.add("victim", fresh(16, 1), max_tokens=50)
    rig.step()
    rig.add("urgent", fresh(12, 2), max_tokens=1, priority=1)

    plan = rig.plan()

    assert rig.req("victim").num_preemptions == 1
    assert rig.is_running("victim")
    assert not plan.swap_outs
    assert rig.space.pool.num_free == 20
    finish(rig)
    rig.assert_all_as_if_alone()
    assert rig.scheduler.stats().swapped_out_blocks == 0


def test_a_victim_that_does_not_fit_into_the_swap_space_is_computed_again() -> None:
    rig = rig_with_a_victim(host_blocks=5)
    assert rig.req("r1").swapped is None

    finish(rig)

    rig.assert_all_as_if_alone()
    assert rig.scheduler.stats().swapped_out_blocks == 0
    assert rig.scheduler.stats().recomputed_tokens > 0


@pytest.mark.parametrize(("costs", "swaps"), [(CHEAP_COPIES, True), (DEAR_COPIES, False)])
def test_auto_swaps_where_copies_are_cheap(costs: TransferCosts, swaps: bool) -> None:
    rig = rig_with_a_victim(preemption_mode="auto", costs=costs)
    finish(rig)

    rig.assert_all_as_if_alone()
    assert (rig.scheduler.stats().swapped_out_blocks > 0) == swaps


def test_the_victim_resumes_before_those_that_came_later() -> None:
    rig = rig_with_a_victim()
    for i in range(2, 6):
        rig.add(f"r{i}", fresh(8, i), max_tokens=60)

    finish(rig)

    rig.assert_all_as_if_alone()
    assert list(rig.finals)[:2] == ["r0", "r1"]


def test_swapping_a_swapped_request_is_our_bug() -> None:
    rig = rig_with_a_victim()
    req = rig.req("r1")
    req.lease = rig.req("r0").lease

    with pytest.raises(InvariantError) as caught:
        rig.space.save(req, 0)

    assert caught.value.number == 11


def test_the_first_tokens_of_a_prefill_cost_what_was_measured_for_so_few() -> None:
    costs = TransferCosts(
        block_bytes=4,
        copy_bytes_per_s=1.0,
        prefill_tokens_per_s=10.0,
        few_tokens=((1, 0.0), (3, 0.2), (8, 1.2)),
    )

    found = [costs.prefill_s(count) for count in (0, 1, 2, 3, 4, 8, 9, 18)]

    assert found == pytest.approx([0.0, 0.0, 0.1, 0.2, 0.4, 1.2, 1.3, 2.2])
