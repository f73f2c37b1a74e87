from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from radixserve.core.invariants import check_tree, draw
from radixserve.core.radix_tree import RadixTree
from radixserve.errors import InvariantError
from radixserve.types import BlockId, Namespace, pack_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from radixserve.core.prefix_match import InsertResult, PrefixMatch

NAMELESS = Namespace()
A, B, C, D, E, F, G, H, X = range(1, 10)


def insert(
    tree: RadixTree, tokens: Iterable[int], blocks: Iterable[int], namespace: Namespace = NAMELESS
) -> InsertResult:
    result = tree.insert(pack_ids(tokens), [BlockId(block) for block in blocks], namespace)
    check_tree(tree)
    return result


def match(tree: RadixTree, tokens: Iterable[int], namespace: Namespace = NAMELESS) -> PrefixMatch:
    return tree.match_prefix(pack_ids(tokens), namespace)


def matched_blocks(tree: RadixTree, tokens: Iterable[int]) -> list[int]:
    """The blocks of a match, read through a lock."""
    handle = tree.lock(match(tree, tokens))
    blocks = list(tree.path_blocks(handle))
    tree.unlock(handle)
    check_tree(tree)
    return list(blocks)


def tail_of(found: PrefixMatch) -> tuple[int, int] | None:
    return None if found.tail is None else (found.tail.block, found.tail.num_tokens)


def snapshot(tree: RadixTree) -> object:
    """Everything a tree consists of."""
    nodes = [
        (id(n), n.namespace, id(n.parent), n.key, list(n.blocks), n.end_len, n.lock_ref,
         n.last_access, n.serial, [id(child) for child in n.children or ()])
        for n in tree.nodes()
    ]  # fmt: skip
    counts = (tree.num_evictable_blocks, tree.num_protected_blocks, tree.version, tree._clock)
    return nodes, list(tree.evictable), set(tree.handles()), counts, tree._serial


@pytest.fixture
def drawn() -> RadixTree:
    """The tree that is drawn in the docstring of `radix_tree`."""
    tree = RadixTree(2)
    insert(tree, [A, B, C, D, E, F], [7, 3, 9])
    insert(tree, [A, B, C, D, E, G], [100, 101, 4])
    return tree


def test_the_drawn_tree_has_the_drawn_nodes(drawn: RadixTree) -> None:
    lines = [line.split(" lock_ref")[0].strip() for line in draw(drawn).splitlines()]

    assert lines[1:] == ["[1, 2, 3, 4] -> [7, 3]", "[5, 7] -> [4]", "[5, 6] -> [9]"]


@pytest.mark.parametrize(
    ("tokens", "matched_len", "tails"),
    [
        ([A, B, C, D, E, G, X], 6, [None]),
        ([A, B, C, D, E, H, X], 4, [(9, 1), (4, 1)]),
        ([A, B, C, X], 2, [(3, 1)]),
        ([A, B, X], 2, [None]),
        ([A, X], 0, [(7, 1)]),
        ([X, A], 0, [None]),
        ([A], 0, [None]),
        ([], 0, [None]),
    ],
)
def test_the_drawn_matches_are_found(
    drawn: RadixTree, tokens: list[int], matched_len: int, tails: list[tuple[int, int] | None]
) -> None:
    found = match(drawn, tokens)

    assert found.matched_len == matched_len
    assert tail_of(found) in tails
    assert found.total_len == matched_len + (found.tail.num_tokens if found.tail else 0)


def test_locking_inside_a_node_splits_it_as_drawn(drawn: RadixTree) -> None:
    found = match(drawn, [A, B, X])

    handle = drawn.lock(found)

    lines = [line.strip() for line in draw(drawn).splitlines()]
    assert lines[1:3] == ["[1, 2] -> [7] lock_ref=1", "[3, 4] -> [3] lock_ref=0"]
    assert list(drawn.path_blocks(handle)) == [7]
    check_tree(drawn)


def test_one_token_is_always_left_over() -> None:
    tree = RadixTree(2)
    insert(tree, [A, B, C, D], [0, 1])

    lengths = {n: match(tree, [A, B, C, D][:n]).total_len for n in range(1, 5)}

    assert lengths == {1: 0, 2: 1, 3: 2, 4: 3}
    assert tail_of(match(tree, [A, B, C, D])) == (1, 1)


def test_a_match_changes_nothing(drawn: RadixTree) -> None:
    drawn.lock(match(drawn, [A, B, C, D, E, F, X]))
    before = snapshot(drawn)

    for tokens in ([A, B, C, X], [A, B], [A, B, C, D, E, H, X], [X], [A, B, C, D, E, F, X]):
        match(drawn, tokens)
        match(drawn, tokens, Namespace(salt="new"))

    assert snapshot(drawn) == before


def test_the_longest_tail_among_the_children_is_chosen() -> None:
    tree = RadixTree(4)
    insert(tree, [A, A, A, A], [0])
    insert(tree, [A, B, A, A], [1])
    insert(tree, [A, B, C, A], [2])
    insert(tree, [A, C, C, A], [3])

    assert tail_of(match(tree, [A, B, C, D, E])) == (2, 3)
    assert tail_of(match(tree, [A, B, D, D, E])) in [(1, 2), (2, 2)]
    assert tail_of(match(tree, [A, C, X])) == (3, 2)
    assert tail_of(match(tree, [B, C, X])) is None


def test_tokens_are_compared_whole_and_not_by_their_bytes() -> None:
    tree = RadixTree(2)
    insert(tree, [0x01020304, 1], [0])

    assert match(tree, [0x05020304, 1, 1]).total_len == 0
    assert match(tree, [0x01020304, 256, 1]).total_len == 1


def test_a_sequence_that_ends_inside_a_node_shares_its_first_blocks() -> None:
    tree = RadixTree(1)
    insert(tree, [A, B, C, D, E], [0, 1, 2, 3, 4])

    result = insert(tree, [A, B, C], [10, 11, 12])

    assert result.blocks == [0, 1, 2]
    assert result.duplicates == [10, 11, 12]
    assert matched_blocks(tree, [A, B, C, D, E, X]) == [0, 1, 2, 3, 4]


def test_a_longer_sequence_keeps_the_blocks_that_are_there() -> None:
    tree = RadixTree(1)
    insert(tree, [A, B], [0, 1])

    result = insert(tree, [A, B, C], [10, 11, 12])

    assert result.blocks == [0, 1, 12]
    assert result.duplicates == [10, 11]


def test_namespaces_share_nothing_even_if_a_salt_is_named_like_an_adapter() -> None:
    tree = RadixTree(1)
    spaces = [
        Namespace(),
        Namespace(salt="x"),
        Namespace(adapter="x"),
        Namespace(model="x"),
        Namespace(adapter="x", salt="x"),
    ]
    for i, space in enumerate(spaces):
        assert match(tree, [A, B, X], space).total_len == 0
        insert(tree, [A, B], [10 * i, 10 * i + 1], space)

    for i, space in enumerate(spaces):
        handle = tree.lock(match(tree, [A, B, X], space))
        assert list(tree.path_blocks(handle)) == [10 * i, 10 * i + 1]


def test_eviction_in_one_namespace_frees_no_locked_block_of_another() -> None:
    tree = RadixTree(1)
    insert(tree, [A], [0], Namespace(adapter="one"))
    insert(tree, [A], [1], Namespace(adapter="two"))
    tree.lock(match(tree, [A, X], Namespace(adapter="one")))

    assert tree.evict(9) == [1]


def test_c1_the_matched_node_itself_survives_an_eviction_of_everything() -> None:
    tree = RadixTree(1)
    insert(tree, range(1, 9), range(8))
    insert(tree, [1, 2, 3, 4, 9, 10, 11, 12], [100, 101, 102, 103, 8, 9, 10, 11])
    handle = tree.lock(match(tree, [1, 2, 3, 4, 9, 10, 11, 12, 99]))

    freed = tree.evict(100)

    assert sorted(freed) == [4, 5, 6, 7]
    assert list(tree.path_blocks(handle)) == [0, 1, 2, 3, 8, 9, 10, 11]
    tree.unlock(handle)
    assert sorted(tree.evict(100)) == [0, 1, 2, 3, 8, 9, 10, 11]
    assert list(tree.nodes()) == []
    with pytest.raises(InvariantError) as caught:
        tree.unlock(handle)
    assert caught.value.number == 4
    check_tree(tree)


def test_c5_a_split_keeps_the_evictable_count_right() -> None:
    tree = RadixTree(1)
    insert(tree, [A, B, C, D], [0, 1, 2, 3])

    handle = tree.lock(match(tree, [A, B, X]))

    assert (tree.num_evictable_blocks, tree.num_protected_blocks) == (2, 2)
    assert sorted(tree.evict(9)) == [2, 3]
    tree.unlock(handle)
    assert (tree.num_evictable_blocks, tree.num_protected_blocks) == (2, 0)


def test_a_split_under_a_lock_keeps_both_handles_right() -> None:
    tree = RadixTree(1)
    insert(tree, [A, B, C, D], [0, 1, 2, 3])
    deep = tree.lock(match(tree, [A, B, C, D, X]))

    shallow = tree.lock(match(tree, [A, B, X]))

    check_tree(tree)
    assert list(tree.path_blocks(deep)) == [0, 1, 2, 3]
    assert list(tree.path_blocks(shallow)) == [0, 1]
    tree.unlock(deep)
    check_tree(tree)
    assert (tree.num_evictable_blocks, tree.num_protected_blocks) == (2, 2)
    assert sorted(tree.evict(9)) == [2, 3]
    assert list(tree.path_blocks(shallow)) == [0, 1]


def test_a_stale_match_cannot_be_locked() -> None:
    tree = RadixTree(1)
    insert(tree, [A, B], [0, 1])
    changes: list[Callable[[], object]] = [
        lambda: insert(tree, [B], [2]),
        lambda: tree.lock(match(tree, [A, X])),
        lambda: tree.evict(1),
    ]
    for change in changes:
        found = match(tree, [A, B, X])
        change()

        with pytest.raises(InvariantError) as caught:
            tree.lock(found)
        assert caught.value.number == 0


def test_a_match_of_an_unknown_namespace_goes_stale_when_another_makes_its_root() -> None:
    tree = RadixTree(1)
    first, second = match(tree, [A, X]), match(tree, [A, X])
    tree.lock(first)

    with pytest.raises(InvariantError):
        tree.lock(second)


def test_a_long_leaf_loses_only_its_tail() -> None:
    tree = RadixTree(2)
    insert(tree, [A, B, C, D, E, F], [5, 6, 7])

    assert tree.evict(1) == [7]

    check_tree(tree)
    assert matched_blocks(tree, [A, B, C, D, E, F, X]) == [5, 6]


def test_a_parent_goes_after_its_last_child_and_not_before() -> None:
    tree = RadixTree(1)
    insert(tree, [A, B], [0, 1])
    insert(tree, [A, C], [9, 2])

    order = [tree.evict(1)[0] for _ in range(3)]

    assert order == [1, 2, 0]
    assert tree.evict(1) == []


def test_the_leaf_used_longest_ago_goes_first() -> None:
    tree = RadixTree(1)
    for token, block in ((A, 0), (B, 1), (C, 2)):
        insert(tree, [token], [block])
    matched_blocks(tree, [A, X])

    assert [tree.evict(1)[0] for _ in range(3)] == [1, 2, 0]


def test_the_end_of_a_lock_counts_as_a_use() -> None:
    tree = RadixTree(1)
    insert(tree, [A], [0])
    handle = tree.lock(match(tree, [A, X]))
    insert(tree, [B], [1])
    tree.unlock(handle)

    assert [tree.evict(1)[0] for _ in range(2)] == [1, 0]


def test_a_decoding_handle_grows_one_node() -> None:
    tree = RadixTree(1)
    insert(tree, [A], [0])
    handle = tree.lock(match(tree, [A, X]))

    for token, block in ((B, 1), (C, 2), (D, 3)):
        tree.extend(handle, pack_ids([token]), [BlockId(block)])
        check_tree(tree)

    assert list(tree.path_blocks(handle)) == [0, 1, 2, 3]
    assert sum(1 for _ in tree.nodes()) == 2


def test_two_handles_at_one_node_branch_when_they_extend() -> None:
    tree = RadixTree(1)
    insert(tree, [A], [0])
    one, two = (tree.lock(match(tree, [A, X])) for _ in range(2))

    tree.extend(one, pack_ids([B]), [BlockId(1)])
    tree.extend(two, pack_ids([C]), [BlockId(2)])

    check_tree(tree)
    assert list(tree.path_blocks(one)) == [0, 1]
    assert list(tree.path_blocks(two)) == [0, 2]


def test_the_loser_of_a_race_takes_over_the_winners_blocks() -> None:
    tree = RadixTree(1)
    one, two = (tree.lock(match(tree, [A])) for _ in range(2))
    tree.extend(one, pack_ids([A, B]), [BlockId(0), BlockId(1)])

    result = tree.extend(two, pack_ids([A, B, C]), [BlockId(5), BlockId(6), BlockId(7)])

    check_tree(tree)
    assert result.blocks == [0, 1, 7]
    assert result.duplicates == [5, 6]
    assert list(tree.path_blocks(two)) == [0, 1, 7]


def test_a_locked_tail_survives_without_a_split() -> None:
    tree = RadixTree(2)
    insert(tree, [A, B, C, D], [0, 1])
    found = match(tree, [A, B, C, X, X])
    assert found.tail is not None
    handle = tree.lock(found)

    pin = tree.lock_tail(found.tail)

    check_tree(tree)
    assert tree.evict(9) == []
    assert list(tree.path_blocks(pin)) == [0, 1]
    tree.unlock(handle)
    assert tree.evict(9) == []
    tree.unlock(pin)
    assert sorted(tree.evict(9)) == [0, 1]


@pytest.mark.parametrize("keep_tail", [True, False])
@pytest.mark.parametrize("tokens", [[A, B, C, X, X], [A, B, C, D, E, X], [A, X, X], [X, X]])
def test_what_stays_evictable_beside_a_match_is_known_before_it_is_locked(
    drawn: RadixTree, tokens: list[int], keep_tail: bool
) -> None:
    found = match(drawn, tokens)
    predicted = drawn.num_evictable_beside(found, keep_tail=keep_tail)

    drawn.lock(found)
    if keep_tail and found.tail is not None:
        drawn.lock_tail(found.tail)

    assert drawn.num_evictable_blocks == predicted


def test_lengths_that_disagree_and_dead_handles_are_refused() -> None:
    tree = RadixTree(2)
    handle = tree.lock(match(tree, [A]))

    with pytest.raises(InvariantError) as caught:
        tree.extend(handle, pack_ids([A, B, C]), [BlockId(0)])
    assert caught.value.number == 3
    tree.unlock(handle)
    with pytest.raises(InvariantError) as caught:
        tree.extend(handle, pack_ids([A, B]), [BlockId(0)])
    assert caught.value.number == 4


def test_an_empty_namespace_leaves_no_root_behind() -> None:
    tree = RadixTree(1)
    handle = tree.lock(match(tree, [A]))
    insert(tree, [], [], Namespace(salt="x"))
    assert sum(1 for _ in tree.nodes()) == 1

    tree.unlock(handle)

    assert list(tree.nodes()) == []
