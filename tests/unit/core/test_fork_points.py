"""Requests that have ended and are kept, so that others go on from their very last token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from radixserve.types import FinishReason, ReqId
from tests.kit.builders import Rig

if TYPE_CHECKING:
    from collections.abc import Sequence

PROMPT = [7, 1, 3, 3, 9, 2, 4, 8, 5, 5, 6, 1, 2, 0]
MORE = [11, 12, 13]


def kept_parent(rig: Rig, name: str = "parent", prompt: Sequence[int] = PROMPT) -> list[int]:
    """Run a request to its end, kept as a fork point; return its prompt and output."""
    rig.add(name, prompt, max_tokens=5, is_fork_point=True)
    rig.drain()
    assert ReqId(name) in rig.scheduler.fork_points
    return [*prompt, *rig.tokens[name]]


@pytest.mark.parametrize("block_size", [1, 2, 4, 16, 64])
def test_a_child_computes_exactly_what_its_parent_has_not(block_size: int) -> None:
    rig = Rig(num_blocks=256 // block_size, block_size=block_size)
    tokens = kept_parent(rig)
    before = rig.runner.computed_tokens

    rig.add("child", tokens + MORE, fork_of="parent", max_tokens=1)
    rig.drain()

    # The parent's last token was sampled and never computed.
    assert rig.runner.computed_tokens - before == 1 + len(MORE)
    assert rig.finals["child"].cached_len == len(tokens) - 1
    rig.assert_all_as_if_alone()


def test_a_child_of_an_ordinary_request_that_ended_computes_its_last_block_again() -> None:
    rig = Rig(num_blocks=16, block_size=16)
    rig.add("parent", PROMPT, max_tokens=5)
    rig.drain()

    rig.add("child", [*PROMPT, *rig.tokens["parent"]], fork_of="parent", max_tokens=1)
    rig.drain()

    assert rig.finals["child"].cached_len == 16


def test_a_chain_of_turns_computes_each_token_once() -> None:
    rig = Rig(num_blocks=64, block_size=16)
    tokens = kept_parent(rig, "turn 0")
    for turn in range(1, 6):
        kept_before = rig.runner.computed_tokens
        tokens = [*tokens, *MORE]
        rig.add(
            f"turn {turn}", tokens, fork_of=f"turn {turn - 1}", max_tokens=5, is_fork_point=True
        )
        rig.drain()
        tokens += rig.tokens[f"turn {turn}"]
        assert rig.runner.computed_tokens - kept_before == 1 + len(MORE) + 4
    rig.assert_all_as_if_alone()


def test_several_children_at_once_and_one_after_the_other() -> None:
    rig = Rig(num_blocks=64, block_size=16)
    tokens = kept_parent(rig)

    for i in range(4):
        rig.add(f"together {i}", [*tokens, 20 + i], fork_of="parent", max_tokens=3)
    rig.drain()
    for i in range(2):
        rig.add(f"later {i}", [*tokens, 30 + i], fork_of="parent", max_tokens=3)
        rig.drain()

    for name, final in rig.finals.items():
        assert final.cached_len == (0 if name == "parent" else len(tokens) - 1)
    rig.assert_all_as_if_alone()


def test_what_is_forgotten_is_free_at_the_next_step() -> None:
    rig = Rig(num_blocks=16, block_size=16)
    kept_parent(rig)
    assert rig.scheduler.stats().private_blocks == 1

    rig.scheduler.abort(ReqId("parent"))
    assert rig.scheduler.has_work
    rig.drain()

    stats = rig.scheduler.stats()
    assert (stats.private_blocks, stats.protected_blocks) == (0, 0)
    assert rig.finals["parent"].finish_reason is FinishReason.LENGTH
    rig.scheduler.abort(ReqId("parent"))
    assert not rig.scheduler.has_work


@pytest.mark.parametrize("how", ["abort", "fail", "row", "timeout"])
def test_only_a_request_that_ended_by_itself_is_kept(how: str) -> None:
    rig = Rig(num_blocks=16, block_size=4)
    deadline = 1.5 if how == "timeout" else None
    rig.add("parent", PROMPT, max_tokens=9, is_fork_point=True, deadline=deadline)
    rig.step()
    if how == "abort":
        rig.scheduler.abort(ReqId("parent"))
    if how == "fail":
        rig.fail(rig.plan())
    if how == "row":
        rig.land(rig.plan(), {0: "not a number"})
    rig.drain()

    assert len(rig.scheduler.fork_points) == 0
    assert rig.cache.num_private_blocks == 0
    assert rig.cache.tree.num_protected_blocks == 0


def test_a_request_that_a_stop_string_ended_is_kept_with_the_token_that_came_meanwhile() -> None:
    """The engine ends such a request by its own hand, a step late."""
    rig = Rig(num_blocks=16, block_size=16)
    rig.add("parent", PROMPT, max_tokens=9, is_fork_point=True)
    for _ in range(3):
        rig.step()
    rig.scheduler.abort(ReqId("parent"), FinishReason.STOP)
    rig.drain()
    tokens = [*PROMPT, *rig.tokens["parent"]]
    before = rig.runner.computed_tokens

    rig.add("child", [*tokens, 1], fork_of="parent", max_tokens=1)
    rig.drain()

    assert rig.runner.computed_tokens - before == 2


def test_a_name_that_is_used_again_gives_its_fork_point_up() -> None:
    rig = Rig(num_blocks=16, block_size=16)
    tokens = kept_parent(rig)
    del rig.specs["parent"], rig.finals["parent"], rig.tokens["parent"]

    rig.add("parent", [1, 2], max_tokens=1)
    rig.add("child", tokens, fork_of="parent", max_tokens=1)
    rig.drain()

    assert rig.finals["child"].cached_len == 16
    assert rig.cache.num_private_blocks == 0
    rig.assert_all_as_if_alone()


def test_forgetting_and_then_using_the_name_again_leaves_the_newcomer_alone() -> None:
    rig = Rig(num_blocks=16, block_size=16)
    kept_parent(rig)
    del rig.specs["parent"], rig.finals["parent"], rig.tokens["parent"]

    rig.scheduler.abort(ReqId("parent"))
    rig.add("parent", [1, 2], max_tokens=2)
    rig.drain()

    rig.assert_all_as_if_alone()


def test_fork_points_go_before_anybody_waits_the_oldest_first() -> None:
    rig = Rig(num_blocks=8, block_size=4)
    for i in range(3):
        kept_parent(rig, f"kept {i}", [50 + i, 1])
    assert len(rig.scheduler.fork_points) == 3

    rig.add("large", range(100, 121), max_tokens=3)
    rig.step()

    assert rig.is_running("large")
    assert "kept 0" not in rig.scheduler.fork_points
    assert "kept 2" in rig.scheduler.fork_points
    rig.drain()


def test_fork_points_go_before_anybody_is_preempted() -> None:
    rig = Rig(num_blocks=10, block_size=4)
    kept_parent(rig, "kept", [50, 1])
    rig.add("a", [1, 2], max_tokens=17)
    rig.add("b", [3, 4], max_tokens=17)
    rig.drain()

    assert rig.scheduler.counters.preemptions == 0
    assert len(rig.scheduler.fork_points) == 0
    rig.assert_all_as_if_alone()


def test_a_fork_point_that_takes_the_room_its_child_needs_is_given_up() -> None:
    rig = Rig(num_blocks=5, block_size=4)
    tokens = kept_parent(rig, prompt=PROMPT[:6])

    rig.add("child", [*tokens, *range(40, 48)], fork_of="parent", max_tokens=1)
    rig.drain()

    rig.assert_all_as_if_alone()


def test_a_leader_that_ended_and_is_kept_is_held_while_a_follower_copies_from_it() -> None:
    """A leader is no parent: nothing but the copy itself says that its blocks are needed.

    With one block left, the second follower wants the room of the oldest fork point, which is the
    very leader that the first follower copies from in this step.
    """
    rig = Rig(num_blocks=7, block_size=4, max_num_seqs=4)
    prompt = [1, 2, 3, 4, 5, 6]
    rig.add("leader", prompt, max_tokens=1, is_fork_point=True)
    rig.add("first", [*prompt, 20], max_tokens=2)
    rig.add("second", range(60, 85), max_tokens=2)

    rig.drain()

    rig.assert_all_as_if_alone()
