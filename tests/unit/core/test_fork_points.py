"""Requests that have ended and are kept, so that others go on from their very last token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from radixserve.core.eviction.names import find_eviction_policy
from radixserve.core.prefix_cache import PrefixCache
from radixserve.types import FinishReason, Namespace, ReqId, pack_ids
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


SHOTS = list(range(100, 116))


def hinted_rig() -> Rig:
    """Return a rig of 32 blocks of 4 whose cache listens to hints."""
    make_index = find_eviction_policy("lru", num_blocks=32, block_size=4, hold_share=0.5)
    cache = PrefixCache(num_blocks=32, block_size=4, make_index=make_index)
    return Rig(num_blocks=32, cache=cache)


def turns(rig: Rig, name: str, own: list[int]) -> list[int]:
    """Run two turns behind the shots, each kept; return what the second one has read."""
    tokens = kept_parent(rig, f"{name} 1", [*SHOTS, *own])
    more = [*tokens, *MORE]
    rig.add(f"{name} 2", more, fork_of=f"{name} 1", max_tokens=5, is_fork_point=True)
    rig.drain()
    return more


def end(rig: Rig, name: str, *, is_end: bool = True) -> None:
    for turn in (1, 2):
        rig.scheduler.fork_points.forget(ReqId(f"{name} {turn}"), is_end=is_end)


def cached_len(rig: Rig, tokens: list[int]) -> int:
    """Return how much of a prompt the cache holds."""
    return rig.cache.match(pack_ids(tokens), Namespace()).total_len


def test_what_has_ended_goes_first_though_it_was_used_last() -> None:
    rig = hinted_rig()
    waiting = turns(rig, "waiting", [1, 2, 3, 4])
    over = turns(rig, "over", [5, 6, 7, 8])
    end(rig, "waiting", is_end=False)
    end(rig, "over")

    rig.cache.tree.evict(4)

    assert cached_len(rig, over) == len(SHOTS)
    assert cached_len(rig, waiting) > len(waiting) - 4


def test_what_was_found_in_the_cache_is_spared_though_nobody_else_has_it_now() -> None:
    rig = hinted_rig()
    old = kept_parent(rig, "old 1", [*SHOTS, 9, 9, 9, 9])
    end(rig, "old")
    over = turns(rig, "over", [5, 6, 7, 8])
    end(rig, "over")
    other = kept_parent(rig, "other 1", [50, 51, 52, 53])
    end(rig, "other", is_end=False)

    rig.cache.tree.evict(rig.cache.tree.num_evictable_blocks - len(SHOTS) // 4 - 2)

    assert cached_len(rig, over) == cached_len(rig, old) == len(SHOTS)
    assert cached_len(rig, other) == 8
