from __future__ import annotations

from array import array
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve.core.node import Node
from radixserve.core.plan import TransferCosts
from radixserve.core.preemption import (
    Loss,
    choose_method,
    choose_victim,
    expected_demand,
    queue_order,
)
from radixserve.core.prefix_cache import Lease
from radixserve.core.prefix_match import PrefixHandle
from radixserve.core.req import Req
from tests.kit.builders import NAMELESS, make_spec


def make_lease(shared: int, private: int) -> Lease:
    """A lease over that many blocks of a tree, and blocks of its own."""
    root = Node(namespace=NAMELESS, parent=None, key=b"", blocks=array("I"), serial=0)
    lease = Lease(PrefixHandle(root), array("I", range(shared)))
    lease.table.extend(range(shared, shared + private))
    return lease


def running(*facts: tuple[int, int], block_size: int = 16) -> list[Req]:
    """Reqs in order of arrival from (priority, computed tokens); full blocks are published."""
    reqs = []
    for i, (priority, computed_len) in enumerate(facts):
        req = Req(make_spec(f"r{i}", [1] * 100, priority=priority), arrival=i)
        req.computed_len = computed_len
        req.lease = make_lease(computed_len // block_size, 1)
        reqs.append(req)
    return reqs


def victim_of(*facts: tuple[int, int]) -> str | None:
    victim = choose_victim(running(*facts), block_size=16)
    return None if victim is None else victim.req_id


def test_a_lone_request_is_never_the_victim() -> None:
    assert victim_of() is None
    assert victim_of((0, 20)) is None


def test_the_lowest_priority_gives_way_first() -> None:
    assert victim_of((1, 16), (0, 31), (2, 16)) == "r1"


def test_then_the_one_that_loses_fewest_unpublished_tokens() -> None:
    assert victim_of((0, 16), (0, 47), (0, 33), (0, 20)) == "r2"


def test_then_the_youngest() -> None:
    assert victim_of((0, 16), (0, 33), (0, 17), (0, 20)) == "r2"


def test_the_first_in_queue_order_is_spared_though_its_loss_is_smallest() -> None:
    assert victim_of((0, 16), (0, 31)) == "r1"
    assert victim_of((0, 16), (1, 31)) == "r0"


@given(st.lists(st.tuples(st.integers(-1, 1), st.integers(0, 40)), min_size=2, max_size=9))
def test_the_victim_is_never_the_head_and_never_above_another_candidate(
    facts: list[tuple[int, int]],
) -> None:
    reqs = running(*facts, block_size=4)
    head = min(reqs, key=queue_order)

    victim = choose_victim(reqs, block_size=4)

    assert victim is not None
    assert victim is not head
    others = [req for req in reqs if req is not head]
    assert victim.spec.priority == min(req.spec.priority for req in others)


def test_what_was_never_published_counts_as_lost_whole() -> None:
    reqs = running((0, 16), (0, 48), (0, 20))
    reqs[1].lease = make_lease(0, 3)

    victim = choose_victim(reqs, block_size=16)

    assert victim is reqs[2]


# -- the method ----------------------------------------------------------------------------------

COSTS = TransferCosts(block_bytes=16, copy_bytes_per_s=1600.0, prefill_tokens_per_s=200.0)
"""A block of 16 tokens is copied in 10 ms and computed in 80 ms."""
BIG = Loss(published_blocks=10, unpublished_tokens=5, demand=100, block_size=16)


def test_a_loss_counts_blocks_that_others_will_take_and_the_unpublished_part() -> None:
    assert (BIG.saved_blocks, BIG.expected_blocks, BIG.expected_tokens) == (11, 11, 165)
    some = replace(BIG, demand=3)
    assert (some.saved_blocks, some.expected_blocks, some.expected_tokens) == (11, 4, 53)
    full = replace(BIG, unpublished_tokens=0, demand=0)
    assert (full.saved_blocks, full.expected_blocks, full.expected_tokens) == (10, 0, 0)


def test_recompute_and_swap_are_taken_at_their_word() -> None:
    for costs in (None, COSTS, replace(COSTS, copy_bytes_per_s=1.0)):
        assert choose_method("recompute", BIG, costs=costs, free_host_blocks=99) == "recompute"
        assert choose_method("swap", BIG, costs=costs, free_host_blocks=99) == "swap"


@pytest.mark.parametrize("mode", ["auto", "swap"])
def test_a_victim_that_does_not_fit_into_host_memory_is_recomputed(mode: str) -> None:
    assert choose_method(mode, BIG, costs=COSTS, free_host_blocks=11) == "swap"  # type: ignore[arg-type]
    assert choose_method(mode, BIG, costs=COSTS, free_host_blocks=10) == "recompute"  # type: ignore[arg-type]


def test_nothing_to_lose_is_nothing_to_save() -> None:
    nothing = replace(BIG, published_blocks=0, unpublished_tokens=0)
    assert choose_method("swap", nothing, costs=COSTS, free_host_blocks=9) == "recompute"


def test_auto_without_measured_costs_recomputes() -> None:
    assert choose_method("auto", BIG, costs=None, free_host_blocks=99) == "recompute"


@pytest.mark.parametrize(("copy_bytes_per_s", "expected"), [(427.0, "swap"), (426.0, "recompute")])
def test_auto_weighs_out_and_in_against_computing_again(
    copy_bytes_per_s: float, expected: str
) -> None:
    """165 tokens at 200/s are 0.825 s; 22 blocks of 16 bytes take that long at 426.7 bytes/s."""
    costs = replace(COSTS, copy_bytes_per_s=copy_bytes_per_s)

    assert choose_method("auto", BIG, costs=costs, free_host_blocks=99) == expected


def test_auto_leaves_to_the_tree_what_will_probably_still_be_there() -> None:
    """Copying ten blocks out takes longer than computing the little that others will take."""
    safe = replace(BIG, unpublished_tokens=1, demand=0)
    assert choose_method("auto", safe, costs=COSTS, free_host_blocks=99) == "recompute"
    assert (
        choose_method("auto", replace(safe, demand=2), costs=COSTS, free_host_blocks=99) == "swap"
    )


def test_the_overhead_of_a_transfer_makes_small_swaps_dear() -> None:
    small = replace(BIG, published_blocks=0)
    dear = replace(COSTS, copy_overhead_s=0.01)
    assert choose_method("auto", small, costs=COSTS, free_host_blocks=99) == "swap"
    assert choose_method("auto", small, costs=dear, free_host_blocks=99) == "recompute"
    assert choose_method("auto", BIG, costs=dear, free_host_blocks=99) == "swap"


@given(st.integers(0, 50), st.integers(0, 40), st.integers(0, 60), st.integers(1, 16))
def test_auto_never_takes_the_way_that_it_expects_to_be_slower(
    published: int, unpublished: int, demand: int, block_size: int
) -> None:
    loss = Loss(
        published_blocks=published,
        unpublished_tokens=unpublished,
        demand=demand,
        block_size=block_size,
    )

    method = choose_method("auto", loss, costs=COSTS, free_host_blocks=1000)

    swap_s = COSTS.copy_s(loss.saved_blocks) + COSTS.copy_s(loss.expected_blocks)
    recompute_s = COSTS.prefill_s(loss.expected_tokens)
    assert {"swap": swap_s, "recompute": recompute_s}[method] <= min(swap_s, recompute_s)


def test_demand_is_what_the_others_grow_by_until_the_first_of_them_ends() -> None:
    """Prompts of 100 tokens in 7 blocks, which hold 112; 20 more end the first, 120 in 8."""
    reqs = []
    for i, max_tokens in enumerate((20, 200)):
        req = Req(make_spec(f"r{i}", [1] * 100, max_tokens=max_tokens), arrival=i)
        req.lease = make_lease(6, 1)
        reqs.append(req)

    assert expected_demand(reqs, 16) == 2
    assert expected_demand(reqs[:1], 16) == 1
    assert expected_demand(reqs[1:], 16) == 12
    assert expected_demand([], 16) == 0
