"""Each invariant is broken by hand: a check that cannot fail is worth nothing."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from radixserve.core.children import Children
from radixserve.core.invariants import check, check_cache, draw
from radixserve.core.node import Node
from radixserve.core.plan import BlockCopy, BlockSwap
from radixserve.core.req import Req, ReqState
from radixserve.errors import InvariantError
from radixserve.types import BlockId, Namespace, ReqId, pack_ids
from tests.kit.builders import Rig, make_spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve.core.prefix_cache import Lease
    from radixserve.core.swap_space import SwappedKV

    Corruption: TypeAlias = Callable[[Rig], object]


@pytest.fixture
def rig() -> Rig:
    """Two running requests that share a prefix, one waiting, and something unlocked in the tree.

    root `- 1 2 3 4          locked by both
            |- 5 6 7 8       locked by a
            `- 9 9 9 9       locked by b
         `- 7 7 7 7 8 8 8 8  unlocked, older than the next
         `- 6 6 6 6          unlocked
    """
    rig = Rig(num_blocks=40, block_size=2, max_num_seqs=2, host_blocks=8, preemption_mode="swap")
    for name, prompt in (("old", [7, 7, 7, 7, 8, 8, 8, 8]), ("new", [6, 6, 6, 6])):
        rig.add(name, prompt, max_tokens=1)
        rig.drain()
    rig.add("first", [1, 2, 3, 4], max_tokens=1)
    rig.drain()
    rig.add("a", [1, 2, 3, 4, 5, 6, 7, 8, 1], max_tokens=50)
    rig.add("b", [1, 2, 3, 4, 9, 9, 9, 9, 1], max_tokens=50)
    rig.add("waiting", [3, 3, 3], max_tokens=1)
    for _ in range(3):
        rig.step()
    assert lease_of(rig, "a").num_private == 1
    return rig


def node_of(rig: Rig, *tokens: int) -> Node:
    """The node whose own run is these tokens."""
    return next(node for node in rig.cache.tree.nodes() if node.key == pack_ids(tokens))


def old_leaf(rig: Rig) -> Node:
    return node_of(rig, 7, 7, 7, 7, 8, 8, 8, 8)


def new_leaf(rig: Rig) -> Node:
    return node_of(rig, 6, 6, 6, 6)


def shared_node(rig: Rig) -> Node:
    return node_of(rig, 1, 2, 3, 4)


def lease_of(rig: Rig, name: str) -> Lease:
    lease = rig.req(name).lease
    assert lease is not None
    return lease


def siblings_of(rig: Rig) -> Children:
    """The children of the root."""
    root = shared_node(rig).parent
    assert root is not None
    assert root.children is not None
    return root.children


BREAKS: list[tuple[int, Corruption]] = []


def breaks(number: int) -> Callable[[Corruption], Corruption]:
    """Register a corruption of a live scheduler that must be found as invariant `number`."""

    def register(corruption: Corruption) -> Corruption:
        BREAKS.append((number, corruption))
        return corruption

    return register


@breaks(1)
def a_cached_block_is_freed(rig: Rig) -> None:
    rig.cache.pool.free([BlockId(old_leaf(rig).blocks[0])])


@breaks(1)
def a_private_block_is_freed(rig: Rig) -> None:
    rig.cache.pool.free(lease_of(rig, "a").private_blocks)


@breaks(1)
def a_block_is_lost(rig: Rig) -> None:
    rig.cache.pool.allocate(1)


@breaks(1)
def two_nodes_name_one_block(rig: Rig) -> None:
    old_leaf(rig).blocks[0] = new_leaf(rig).blocks[0]


@breaks(1)
def a_private_block_is_cached_too(rig: Rig) -> None:
    old_leaf(rig).blocks[0] = lease_of(rig, "a").private_blocks[0]


@breaks(2)
def an_evictable_block_is_not_counted(rig: Rig) -> None:
    rig.cache.tree.num_evictable_blocks -= 1


@breaks(2)
def a_protected_block_is_counted_twice(rig: Rig) -> None:
    rig.cache.tree.num_protected_blocks += 1


@breaks(2)
def the_free_list_has_a_block_too_many(rig: Rig) -> None:
    rig.cache.pool._free.append(BlockId(0))


@breaks(3)
def a_run_has_too_many_tokens(rig: Rig) -> None:
    old_leaf(rig).key += pack_ids([1])


@breaks(3)
def a_run_has_too_few_blocks(rig: Rig) -> None:
    old_leaf(rig).blocks.pop()


@breaks(3)
def a_node_ends_in_the_wrong_place(rig: Rig) -> None:
    old_leaf(rig).end_len -= 1


@breaks(3)
def a_run_is_empty(rig: Rig) -> None:
    leaf = old_leaf(rig)
    leaf.key, leaf.blocks, leaf.end_len = b"", array("I"), 0


@breaks(3)
def a_node_points_to_the_wrong_parent(rig: Rig) -> None:
    old_leaf(rig).parent = new_leaf(rig).parent = Node(
        namespace=Namespace(), parent=None, key=b"", blocks=array("I"), serial=0
    )


@breaks(3)
def a_leaf_has_an_empty_map_of_children(rig: Rig) -> None:
    old_leaf(rig).children = Children()


@breaks(3)
def a_child_is_filed_under_other_tokens(rig: Rig) -> None:
    siblings, leaf = siblings_of(rig), old_leaf(rig)
    siblings.remove(leaf.first_block(8))
    siblings.put(pack_ids([5, 5]), leaf)


@breaks(3)
def a_child_is_in_another_namespace(rig: Rig) -> None:
    old_leaf(rig).namespace = Namespace(salt="x")


@breaks(3)
def siblings_are_not_sorted(rig: Rig) -> None:
    keys = siblings_of(rig)._chunks[0]
    keys[0], keys[1] = keys[1], keys[0]


@breaks(4)
def a_lock_is_lost(rig: Rig) -> None:
    shared_node(rig).lock_ref -= 1


@breaks(4)
def an_unlocked_node_counts_a_lock(rig: Rig) -> None:
    old_leaf(rig).lock_ref += 1


@breaks(4)
def a_handle_is_forgotten(rig: Rig) -> None:
    rig.cache.tree._handles.pop()


@breaks(4)
def a_dead_handle_is_kept(rig: Rig) -> None:
    next(rig.cache.tree.handles()).node = None


@breaks(4)
def a_handle_belongs_to_nobody(rig: Rig) -> None:
    rig.cache.tree.lock(rig.cache.match(pack_ids([6, 6, 6, 6, 1]), Namespace()))


@breaks(5)
def a_leaf_is_not_in_the_index(rig: Rig) -> None:
    rig.cache.tree.evictable.remove(old_leaf(rig))


@breaks(5)
def a_locked_node_is_in_the_index(rig: Rig) -> None:
    rig.cache.tree.evictable.add(shared_node(rig))


@breaks(5)
def the_index_holds_another_node_than_the_leaf(rig: Rig) -> None:
    rig.cache.tree.evictable.remove(old_leaf(rig))
    rig.cache.tree.evictable.add(shared_node(rig))


@breaks(5)
def the_index_is_out_of_order(rig: Rig) -> None:
    new_leaf(rig).last_access = -1


@breaks(6)
def a_child_is_younger_than_its_parent(rig: Rig) -> None:
    shared_node(rig).last_access = 10**9


@breaks(7)
def a_table_names_another_block_than_the_path(rig: Rig) -> None:
    lease_of(rig, "a").table[0] = 39


@breaks(7)
def a_lease_counts_too_few_shared_blocks(rig: Rig) -> None:
    lease_of(rig, "a").num_shared -= 1


@breaks(7)
def a_lease_is_dead_but_held(rig: Rig) -> None:
    lease_of(rig, "a").handle = None


@breaks(7)
def a_running_req_has_no_lease(rig: Rig) -> None:
    rig.cache.release(lease_of(rig, "a"))
    rig.req("a").lease = None


@breaks(7)
def a_waiting_req_has_a_lease(rig: Rig) -> None:
    rig.req("waiting").lease = lease_of(rig, "a")
    rig.req("a").lease = None


@breaks(7)
def a_req_has_computed_all_its_tokens(rig: Rig) -> None:
    rig.req("a").computed_len = rig.req("a").total_len


@breaks(7)
def a_table_is_shorter_than_what_is_computed(rig: Rig) -> None:
    lease = lease_of(rig, "a")
    rig.cache.pool.free(lease.private_blocks)
    del lease.table[lease.num_shared :]


@breaks(7)
def a_table_is_longer_than_the_tokens(rig: Rig) -> None:
    got = rig.cache.pool.allocate(2)
    assert got is not None
    lease_of(rig, "a").table.extend(got)


@breaks(7)
def a_req_is_locked_to_other_tokens(rig: Rig) -> None:
    rig.req("a").tokens[0] = 99


def replace_plan(rig: Rig, **changes: Any) -> None:
    """Put a plan with these changes in flight."""
    rig.plan()
    [flight] = rig.scheduler.flights
    changed = flight._replace(plan=replace(flight.plan, **changes))
    rig.scheduler.flights._flights[0] = changed


def give_out(rig: Rig, *copies: tuple[int, int]) -> None:
    """Put a plan with these copies in flight."""
    made = tuple(BlockCopy(BlockId(source), BlockId(target), 1) for source, target in copies)
    replace_plan(rig, copies=made)


@breaks(8)
def the_running_plan_copies_from_a_free_block(rig: Rig) -> None:
    give_out(rig, (39, 0))


@breaks(8)
def a_block_that_the_running_plan_computes_into_is_freed(rig: Rig) -> None:
    rig.plan()
    req, lease = rig.req("a"), lease_of(rig, "a")
    rig.scheduler.queues.finish(req)
    rig.cache.release(lease)


@breaks(8)
def a_block_is_copied_from_and_to(rig: Rig) -> None:
    give_out(rig, (0, 1), (2, 0))


@breaks(8)
def two_copies_go_to_one_block(rig: Rig) -> None:
    give_out(rig, (0, 1), (2, 1))


@breaks(9)
def a_running_req_says_that_it_is_waiting(rig: Rig) -> None:
    rig.req("a").state = ReqState.WAITING


@breaks(9)
def a_finished_req_is_still_queued(rig: Rig) -> None:
    rig.scheduler._live.clear()


@breaks(9)
def a_req_is_queued_twice(rig: Rig) -> None:
    rig.scheduler.queues.waiting.add(rig.req("waiting"))


@breaks(9)
def two_live_reqs_have_one_name(rig: Rig) -> None:
    rig.scheduler.queues.waiting.add(Req(make_spec("waiting", [1]), arrival=99))


@breaks(10)
def a_req_reads_another_namespace(rig: Rig) -> None:
    for node in rig.cache.tree.nodes():
        node.namespace = Namespace(salt="stolen")


def swap_out(rig: Rig) -> tuple[Req, SwappedKV]:
    """Let `a` be preempted and swapped, as the next step's plan would."""
    req = rig.req("a")
    rig.scheduler._builder._preemptor.preempt(req, [])
    rig.scheduler.queues.preempt(req)
    assert req.swapped is not None
    check(rig.scheduler)
    return req, req.swapped


@breaks(11)
def a_saved_host_block_is_freed(rig: Rig) -> None:
    _, saved = swap_out(rig)
    rig.space.pool.free(saved.host_blocks)


@breaks(11)
def a_host_block_is_lost(rig: Rig) -> None:
    rig.space.pool.allocate(1)


@breaks(11)
def a_record_is_forgotten(rig: Rig) -> None:
    req, _ = swap_out(rig)
    req.swapped = None


@breaks(11)
def a_record_says_more_than_it_has(rig: Rig) -> None:
    req, saved = swap_out(rig)
    req.swapped = replace(saved, num_tokens=saved.num_tokens - 2)


@breaks(11)
def a_record_covers_tokens_that_were_never_computed(rig: Rig) -> None:
    req, saved = swap_out(rig)
    req.swapped = replace(saved, num_tokens=saved.num_tokens + 1)


@breaks(11)
def a_running_req_keeps_its_record(rig: Rig) -> None:
    _, saved = swap_out(rig)
    rig.req("a").swapped, rig.req("b").swapped = None, saved


@breaks(11)
def host_blocks_are_read_by_no_plan(rig: Rig) -> None:
    req, saved = swap_out(rig)
    req.swapped = None
    rig.space._being_read.extend(saved.host_blocks)


def give_out_swaps(rig: Rig, outs: dict[str, int], ins: dict[str, int]) -> None:
    """Put a plan with these swaps, of one host block each, in flight."""

    def swaps(host_blocks: dict[str, int]) -> tuple[BlockSwap, ...]:
        own = pack_ids(lease_of(rig, "b").table[:1])
        items = host_blocks.items()
        return tuple(BlockSwap(ReqId(name), own, pack_ids([block])) for name, block in items)

    replace_plan(rig, swap_outs=swaps(outs), swap_ins=swaps(ins))


@breaks(11)
def two_swap_outs_go_to_one_host_block(rig: Rig) -> None:
    give_out_swaps(rig, {"a": 0, "b": 0}, {})


@breaks(11)
def a_swap_in_reads_a_host_block_that_may_be_taken(rig: Rig) -> None:
    give_out_swaps(rig, {}, {"b": 0})


@breaks(11)
def a_swap_in_reads_what_another_overwrites(rig: Rig) -> None:
    rig.space._being_read.extend(rig.space.pool.allocate(1) or ())
    give_out_swaps(rig, {"a": rig.space.being_read[0]}, {"b": rig.space.being_read[0]})


@pytest.mark.parametrize(
    ("number", "corrupt"), BREAKS, ids=[f"{number}-{each.__name__}" for number, each in BREAKS]
)
def test_a_broken_invariant_is_found_and_named(rig: Rig, number: int, corrupt: Corruption) -> None:
    corrupt(rig)

    with pytest.raises(InvariantError) as caught:
        check(rig.scheduler)

    assert caught.value.number == number, caught.value


def test_every_numbered_invariant_is_broken_above() -> None:
    assert {number for number, _ in BREAKS} == set(range(1, 12))


def test_10_the_fake_runner_notices_kv_of_other_tokens(rig: Rig) -> None:
    table = lease_of(rig, "a").table
    rig.runner.slots[table[1], 0] = rig.runner.slots[table[0], 0]

    with pytest.raises(AssertionError, match="wrong KV at 2"):
        rig.step()


def test_10_the_fake_runner_notices_kv_of_another_namespace(rig: Rig) -> None:
    rig.specs["a"] = make_spec("a", [1], namespace=Namespace(salt="x"))

    with pytest.raises(AssertionError, match="is read by"):
        rig.step()


def test_an_idle_scheduler_that_holds_something_is_found(rig: Rig) -> None:
    rig.drain()
    acquired = rig.cache.acquire(rig.cache.match(pack_ids([6, 6, 6]), Namespace()), 3)
    assert acquired is not None
    check_cache(rig.cache, [acquired.lease])

    with pytest.raises(InvariantError) as caught:
        check(rig.scheduler)

    assert caught.value.number in (1, 2)


def test_the_drawing_shows_every_node_with_its_tokens_and_blocks(rig: Rig) -> None:
    lines = draw(rig.cache.tree).splitlines()

    assert len(lines) == sum(1 for _ in rig.cache.tree.nodes())
    shared = shared_node(rig)
    assert f"  [1, 2, 3, 4] -> {list(shared.blocks)} lock_ref=2" in lines
