"""What a hint does to the order, and what it must never do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve.core.eviction import Keep, LruIndex, ReleaseHint
from radixserve.core.eviction.hinted import HintedIndex
from radixserve.core.invariants import check_tree
from radixserve.core.radix_tree import RadixTree
from radixserve.types import BlockId, Namespace, pack_ids, unpack_ids

if TYPE_CHECKING:
    from collections.abc import Iterable

NAMELESS = Namespace()
END = ReleaseHint(is_session_end=True)


class HintedTree:
    """A tree of one-token blocks whose block ids are its tokens, all of which differ."""

    def __init__(self, *, max_held_blocks: int = 100) -> None:
        self.index = HintedIndex(LruIndex(), max_held_blocks=max_held_blocks)
        self.tree = RadixTree(1, lambda: self.index)

    def insert(self, tokens: Iterable[int], hint: ReleaseHint | None = None) -> None:
        """Publish a path."""
        tokens = list(tokens)
        blocks = [BlockId(token) for token in tokens]
        self.tree.insert(pack_ids(tokens), blocks, NAMELESS, hint or ReleaseHint())
        check_tree(self.tree)

    def evict(self, count: int) -> list[int]:
        """Evict, and return the tokens of what went."""
        freed = self.tree.evict(count)
        check_tree(self.tree)
        return sorted(freed)


def test_the_end_of_a_session_goes_first_though_it_was_used_last() -> None:
    tree = HintedTree()
    tree.insert([1, 2])
    tree.insert([3, 4], END)

    assert tree.evict(2) == [3, 4]


def test_the_end_of_a_session_leaves_what_others_share_as_it_was() -> None:
    tree = HintedTree()
    tree.insert([7, 8])
    tree.insert([9, 1])
    tree.insert([9, 2], END)

    assert tree.evict(1) == [2]
    assert tree.evict(2) == [7, 8]


def test_a_path_that_somebody_holds_is_nobodys_to_end() -> None:
    tree = HintedTree()
    tree.insert([1, 2])
    found = tree.tree.match_prefix(pack_ids([1, 2, 0]), NAMELESS)
    other = tree.tree.lock(found)
    tree.insert([5])
    tree.insert([1, 2], END)

    tree.tree.unlock(other)

    assert tree.evict(1) == [5]


def test_a_new_use_takes_back_that_a_session_has_ended() -> None:
    tree = HintedTree()
    tree.insert([1, 2], END)
    tree.insert([5])
    tree.insert([1, 2])

    assert tree.evict(1) == [5]


def test_keeping_the_prefix_splits_where_it_ends() -> None:
    tree = HintedTree()
    tree.insert([5])
    tree.insert([1, 2, 3, 4], ReleaseHint(keep=Keep.PREFIX, prefix_len=2))

    assert tree.evict(2) == [3, 4]
    assert tree.evict(1) == [5]


def test_a_prefix_that_ends_inside_a_block_keeps_that_block() -> None:
    index = HintedIndex(LruIndex(), max_held_blocks=0)
    tree = RadixTree(2, lambda: index)
    hint = ReleaseHint(keep=Keep.PREFIX, prefix_len=3)

    tree.insert(pack_ids(range(6)), [BlockId(0), BlockId(1), BlockId(2)], NAMELESS, hint)

    assert [unpack_ids(leaf.key) for leaf in tree.evictable] == [[4, 5]]


def test_keeping_nothing_ends_all_that_is_ones_own() -> None:
    tree = HintedTree()
    tree.insert([5])
    tree.insert([1, 2], ReleaseHint(keep=Keep.NONE, prefix_len=2))

    assert tree.evict(2) == [1, 2]


def test_what_is_held_goes_last_until_its_time_has_come() -> None:
    tree = HintedTree()
    tree.tree.tick(10.0)
    tree.insert([1], ReleaseHint(hold_s=5.0))
    tree.insert([2])
    tree.insert([3])

    tree.tree.tick(14.9)
    assert tree.evict(1) == [2]
    tree.tree.tick(15.0)
    assert tree.evict(1) == [1]


def test_a_prefix_can_be_held_while_the_rest_goes_first() -> None:
    tree = HintedTree()
    tree.insert([1, 2, 3], ReleaseHint(keep=Keep.PREFIX, prefix_len=1, hold_s=9.0))
    tree.insert([5])

    assert tree.evict(2) == [2, 3]
    assert tree.evict(1) == [5]


def test_a_hold_outlives_uses_that_know_nothing_of_it() -> None:
    tree = HintedTree()
    tree.insert([1], ReleaseHint(hold_s=5.0))
    tree.insert([1])
    tree.insert([2])

    assert tree.evict(1) == [2]


def test_the_end_of_a_session_does_not_undo_a_hold() -> None:
    tree = HintedTree()
    tree.insert([1], ReleaseHint(hold_s=5.0))
    tree.insert([1], END)
    tree.insert([2])

    assert tree.evict(1) == [2]


def test_among_the_held_the_lowest_priority_goes_first() -> None:
    tree = HintedTree()
    tree.insert([1], ReleaseHint(hold_s=5.0, priority=1))
    tree.insert([2], ReleaseHint(hold_s=9.0, priority=0))
    tree.insert([3], ReleaseHint(hold_s=5.0, priority=0))

    assert [tree.evict(1) for _ in range(3)] == [[3], [2], [1]]


def test_everything_can_be_evicted_whatever_was_asked_for() -> None:
    tree = HintedTree()
    tree.insert([1, 2], ReleaseHint(hold_s=1e9, priority=99))
    tree.insert([1, 3], END)
    tree.insert([4])

    assert tree.evict(100) == [1, 2, 3, 4]


def test_beyond_the_budget_a_hold_is_as_if_it_had_not_been_asked_for() -> None:
    tree = HintedTree(max_held_blocks=3)
    tree.insert([1, 2], ReleaseHint(hold_s=9.0))
    tree.insert([3, 4], ReleaseHint(hold_s=9.0))
    tree.insert([5])

    assert tree.index.budget.num_blocks == 2
    assert tree.evict(2) == [3, 4]


def test_a_shared_prefix_counts_once_in_the_budget() -> None:
    tree = HintedTree(max_held_blocks=5)
    tree.insert([1, 2, 3, 4], ReleaseHint(hold_s=9.0))
    tree.insert([1, 2, 3, 5], ReleaseHint(hold_s=9.0))

    assert tree.index.budget.num_blocks == 5
    assert len(list(tree.index.held())) == 2


def test_a_split_above_a_held_leaf_loses_nothing_of_the_count() -> None:
    tree = HintedTree(max_held_blocks=4)
    tree.insert([1, 2, 3, 4], ReleaseHint(hold_s=9.0))
    tree.insert([1, 2, 9])

    assert tree.index.budget.num_blocks == 4
    tree.tree.tick(9.0)
    assert tree.index.budget.num_blocks == 0


def test_a_held_leaf_that_is_in_use_takes_nothing_from_the_budget() -> None:
    tree = HintedTree(max_held_blocks=2)
    tree.insert([1, 2], ReleaseHint(hold_s=9.0))
    handle = tree.tree.lock(tree.tree.match_prefix(pack_ids([1, 2, 0]), NAMELESS))
    assert tree.index.budget.num_blocks == 0

    tree.tree.unlock(handle)

    assert tree.index.budget.num_blocks == 2
