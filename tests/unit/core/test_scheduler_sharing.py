"""A prefix that several Reqs need is computed once: leaders, followers and forks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from radixserve.types import FinishReason, Namespace, ReqId, unpack_ids
from tests.kit.builders import Rig

if TYPE_CHECKING:
    from collections.abc import Callable

COMMON = list(range(42))
"""Ten blocks of four, and two tokens."""


def own(i: int, length: int = 3) -> list[int]:
    """The part of a prompt that nobody else has."""
    return [1000 + 10 * i + place for place in range(length)]


@pytest.mark.parametrize("number", [2, 64])
def test_requests_that_arrive_together_compute_their_common_prefix_once(number: int) -> None:
    rig = Rig(num_blocks=400, block_size=4)
    for i in range(number):
        rig.add(f"r{i}", COMMON + own(i), max_tokens=1)

    rig.drain()

    rig.assert_all_as_if_alone()
    assert rig.runner.computed_tokens == len(COMMON) + number * 3
    assert rig.scheduler.counters.cached_tokens == (number - 1) * len(COMMON)


@pytest.mark.parametrize("number", [2, 8])
def test_a_follower_waits_through_all_chunks_of_its_leader(number: int) -> None:
    rig = Rig(num_blocks=400, block_size=4, prefill_chunk_len=7)
    for i in range(number):
        rig.add(f"r{i}", COMMON + own(i), max_tokens=1)
    for _ in range(5):
        plan = rig.step()
        assert [row.req_id for row in plan.reqs] == ["r0"]

    rig.drain()

    rig.assert_all_as_if_alone()
    assert rig.runner.computed_tokens == len(COMMON) + number * 3


def test_a_follower_waits_for_the_common_span_and_not_for_the_whole_leader() -> None:
    rig = Rig(num_blocks=400, block_size=4, prefill_chunk_len=10)
    rig.add("leader", COMMON + own(1, 200), max_tokens=1)
    rig.add("follower", COMMON + own(30), max_tokens=1)

    while "follower" not in rig.finals:
        rig.step()

    assert rig.req("leader").remaining_len > 100


def test_equal_prompts_in_two_namespaces_do_not_wait_for_each_other() -> None:
    rig = Rig(num_blocks=400, block_size=4)
    rig.add("one", COMMON, max_tokens=1)
    rig.add("two", COMMON, max_tokens=1, namespace=Namespace(salt="x"))

    plan = rig.step()

    assert len(plan.reqs) == 2
    assert rig.runner.computed_tokens == 2 * len(COMMON)


def test_nobody_waits_for_less_than_a_block() -> None:
    rig = Rig(num_blocks=400, block_size=16)
    rig.add("one", COMMON[:15] + own(1), max_tokens=1)
    rig.add("two", COMMON[:15] + own(2), max_tokens=1)
    rig.add("three", COMMON[:16] + own(3), max_tokens=1)

    plan = rig.step()

    assert [row.req_id for row in plan.reqs] == ["one", "two", "three"]


def test_a_follower_copies_the_partial_tail_of_its_running_leader() -> None:
    rig = Rig(num_blocks=400, block_size=4)
    rig.add("leader", COMMON + own(1, 1), max_tokens=9)
    rig.add("follower", COMMON + own(2), max_tokens=9)
    rig.step()
    leader = rig.req("leader").lease
    assert leader is not None
    source = leader.private_blocks[0]

    plan = rig.step()

    assert [(copy.source, copy.num_tokens) for copy in plan.copies] == [(source, 2)]
    rig.drain()
    rig.assert_all_as_if_alone()
    assert rig.finals["follower"].cached_len == len(COMMON)


@pytest.mark.parametrize("number", [2, 6])
def test_equal_prompts_cost_one_prompt_and_a_token_each(number: int) -> None:
    rig = Rig(num_blocks=400, block_size=4)
    for i in range(number):
        rig.add(f"r{i}", COMMON, max_tokens=5)

    rig.drain()

    rig.assert_all_as_if_alone()
    assert rig.runner.computed_tokens == len(COMMON) + (number - 1) + number * 4


def abort_leader(rig: Rig) -> None:
    rig.scheduler.abort(ReqId("r0"))


def fail_step(rig: Rig) -> None:
    rig.fail(rig.plan())


def fail_row(rig: Rig) -> None:
    rig.land(rig.plan(), {0: "not finite"})


@pytest.mark.parametrize(
    ("lose_leader", "wasted"), [(abort_leader, 2), (fail_step, 2), (fail_row, 12)]
)
def test_a_lost_leader_hands_over_to_the_next(
    lose_leader: Callable[[Rig], None], wasted: int
) -> None:
    """After a chunk of ten tokens, two blocks are published and two tokens go with the leader."""
    rig = Rig(num_blocks=400, block_size=4, prefill_chunk_len=10)
    for i in range(4):
        rig.add(f"r{i}", COMMON + own(i), max_tokens=1)
    rig.step()
    assert not rig.is_running("r1")

    lose_leader(rig)
    rig.drain()

    assert rig.reason("r0") in (FinishReason.ABORT, FinishReason.ERROR)
    for name in ("r1", "r2", "r3"):
        assert rig.tokens[name] == rig.expected(name)
    assert rig.runner.computed_tokens == len(COMMON) + 3 * 3 + wasted


def test_a_preempted_leader_hands_over_or_leads_again_and_nothing_hangs() -> None:
    rig = Rig(num_blocks=94, block_size=4, vocab_size=7, max_num_seqs=4, max_num_batched_tokens=4)
    rig.add("head", [5, 5, 5, 5], max_tokens=120, priority=1)
    rig.step()
    shared = list(range(10, 300))
    rig.add("leader", shared + own(1), max_tokens=2)
    rig.add("follower", shared + own(2), max_tokens=2)
    while rig.scheduler.counters.preemptions == 0:
        rig.step()
        assert not rig.is_running("follower")
    assert rig.req("leader").num_preemptions == 1

    rig.drain()

    rig.assert_all_as_if_alone()
    assert rig.finals["leader"].cached_len == 0


def test_a_fork_shares_all_that_its_parent_computed_and_copies_one_block_at_most() -> None:
    for length in (1, 2, 5, 6, 9, 13):
        rig = Rig(num_blocks=400, block_size=4)
        rig.add("parent", COMMON[:length], max_tokens=30)
        for _ in range(3):
            rig.step()
        prompt = unpack_ids(rig.req("parent").tokens)
        computed_len = rig.req("parent").computed_len
        for i in range(3):
            rig.add(f"fork{i}", prompt + own(i, 1), fork_of="parent")

        copies = [*rig.step().copies]
        assert [copy.num_tokens for copy in copies[:1]] == [computed_len % 4][: len(copies)]
        assert bool(copies) == (computed_len % 4 > 0)
        while rig.scheduler.has_work:
            copies += rig.step().copies

        rig.assert_all_as_if_alone()
        assert len(copies) <= 3
        for i in range(3):
            assert rig.finals[f"fork{i}"].cached_len >= computed_len


def test_a_fork_of_a_request_that_is_gone_is_an_ordinary_request() -> None:
    rig = Rig(num_blocks=400, block_size=4)
    rig.add("parent", COMMON, max_tokens=2)
    rig.drain()

    rig.add("fork", COMMON + own(1), fork_of="parent")
    rig.drain()

    rig.assert_all_as_if_alone()
    assert rig.finals["fork"].cached_len >= 40


def test_the_source_of_a_copy_is_held_until_the_copy_is_made() -> None:
    rig = Rig(num_blocks=5, block_size=4)
    rig.add("first", COMMON[:8], max_tokens=1)
    rig.drain()
    rig.add("second", COMMON[:6] + own(1), max_tokens=4)
    plan = rig.plan()
    (copy,) = plan.copies

    rig.cache.flush()

    assert not rig.cache.pool.is_free(copy.source)
    rig.land(plan)
    rig.cache.flush()
    assert rig.is_running("second")
    assert rig.cache.pool.is_free(copy.source)
    rig.drain()
    rig.assert_all_as_if_alone()


def test_a_fork_does_not_copy_from_a_block_that_is_itself_being_copied_to() -> None:
    rig = Rig(num_blocks=100, block_size=4)
    rig.add("root", COMMON[:6], max_tokens=9)
    rig.step()
    rig.add("child", COMMON[:6] + own(1, 1), fork_of="root")
    rig.add("grandchild", COMMON[:6] + own(1, 1) + own(2, 1), fork_of="child")

    plan = rig.step()

    assert rig.is_running("grandchild")
    assert len(plan.copies) == 1
    rig.drain()
    rig.assert_all_as_if_alone()


def sitting_out() -> Rig:
    """The next step copies for `last` but has no token for it: `long` is older and takes half."""
    rig = Rig(
        num_blocks=100,
        block_size=4,
        max_num_seqs=10,
        max_num_batched_tokens=10,
        schedule_policy="lpm",
    )
    for i in range(3):
        rig.add(f"warm{i}", own(10 * i, 8), max_tokens=1)
        rig.drain()
    rig.add("long", COMMON, max_tokens=2)
    for i, (name, length) in enumerate((("first", 1), ("second", 4), ("last", 4))):
        rig.add(name, own(10 * i, 6) + own(50 + i, length), max_tokens=2)
    return rig


def test_a_copy_can_be_made_a_step_before_its_request_computes_anything() -> None:
    rig = sitting_out()

    plan = rig.step()

    assert [row.req_id for row in plan.reqs] == ["long", "first", "second"]
    assert len(plan.copies) == 3
    rig.drain()
    rig.assert_all_as_if_alone()


def test_a_failed_step_ends_those_too_for_whom_it_only_copied() -> None:
    rig = sitting_out()

    rig.fail(rig.plan())

    assert rig.reason("last") is FinishReason.ERROR
    assert not rig.scheduler.has_work
