"""Each order against one that looks at all leaves, and remembers every use, block by block."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve.core.eviction.fifo import FifoIndex
from radixserve.core.eviction.gdsf import GdsfIndex
from radixserve.core.eviction.lfu import AgedLfuIndex, LfuIndex
from radixserve.core.eviction.lru import LruIndex
from radixserve.core.eviction.slru import SlruIndex
from radixserve.core.eviction.two_queue import TwoQueueIndex
from radixserve.core.invariants import check_tree
from radixserve.core.radix_tree import RadixTree
from radixserve.types import ID_BYTES, BlockId, Namespace, pack_ids, unpack_ids

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve.core.eviction import EvictionIndex
    from radixserve.core.node import Node

NAMELESS = Namespace()
Tokens = tuple[int, ...]
PATHS = st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple)
STEPS = st.lists(PATHS | st.integers(1, 3), max_size=40)
"""A path is inserted; a number is how many leaves go."""


class History:
    """What happened to each block, known by the tokens up to it; blocks are one token long.

    What is appended to a leaf counts as a part of it, and has been used as often.
    """

    def __init__(self) -> None:
        self.born: dict[Tokens, int] = {}
        self.last: dict[Tokens, int] = {}
        self.hits: defaultdict[Tokens, int] = defaultdict(int)
        self.level_at_use: dict[Tokens, float] = {}
        self.level = 0.0
        self.clock = 0

    def use(self, tokens: Tokens) -> None:
        """A path is inserted, or used again."""
        self.clock += 1
        known = [tokens[:end] for end in range(1, len(tokens) + 1) if tokens[:end] in self.born]
        grown = known[-1] if known and self.is_leaf(known[-1]) else None
        born, hits = self.clock, 0
        if grown is not None:
            born, hits = self.born[grown], self.hits[grown]
        for end in range(1, len(tokens) + 1):
            block = tokens[:end]
            if block not in self.born:
                self.born[block], self.hits[block] = born, hits
            self.last[block] = self.clock
            self.hits[block] += 1
            self.level_at_use[block] = self.level

    def is_leaf(self, block: Tokens) -> bool:
        """Whether no other block follows."""
        return not any(other[:-1] == block for other in self.born)

    def forget(self, block: Tokens) -> None:
        """A block is evicted."""
        del self.born[block], self.last[block], self.hits[block]


def worth(name: str, history: History, block: Tokens) -> float:
    """What a policy thinks of a block."""
    hits, level = history.hits[block], history.level_at_use[block]
    return {
        "lru": 0.0,
        "fifo": history.born[block],
        "lfu": hits,
        "lfu-da": level + hits,
        "gdsf": level + hits * (1 + len(block) / 4),
    }[name]


MAKERS: dict[str, Callable[[], EvictionIndex]] = {
    "lru": LruIndex,
    "fifo": FifoIndex,
    "lfu": LfuIndex,
    "lfu-da": AgedLfuIndex,
    "gdsf": lambda: GdsfIndex(doubling_len=4),
}


def tokens_of(node: Node) -> Tokens:
    """All the tokens up to the end of a node."""
    key = b""
    above: Node | None = node
    while above is not None:
        key = above.key + key
        above = above.parent
    return tuple(unpack_ids(key))


def insert(tree: RadixTree, tokens: Tokens) -> None:
    """Publish a path; nobody looks at the block ids."""
    tree.insert(pack_ids(tokens), [BlockId(0)] * len(tokens), NAMELESS)


@pytest.mark.parametrize("name", MAKERS)
@given(steps=STEPS)
def test_the_leaf_that_is_worth_least_goes_first(name: str, steps: list[Tokens | int]) -> None:
    tree, history = RadixTree(1, MAKERS[name]), History()
    for step in steps:
        if isinstance(step, tuple):
            insert(tree, step)
            history.use(step)
            continue
        for _ in range(step):
            leaves = {tokens_of(node): node for node in tree.nodes() if not node.children}
            if not leaves:
                break
            expected = min(
                leaves, key=lambda block: (worth(name, history, block), history.last[block])
            )
            assert tree.evictable.first() is leaves[expected]
            history.level = max(history.level, worth(name, history, expected))
            size = len(leaves[expected].blocks)
            assert len(tree.evict(size)) == size
            for end in range(len(expected) - size + 1, len(expected) + 1):
                history.forget(expected[:end])
        check_tree(tree)


def test_fifo_gives_up_what_was_published_first_though_it_was_used_last() -> None:
    tree = RadixTree(1, FifoIndex)
    for tokens in [(1,), (2,), (1,)]:
        insert(tree, tokens)

    tree.evict(1)

    assert [tokens_of(leaf) for leaf in tree.evictable] == [(2,)]


def test_lfu_keeps_for_ever_what_was_popular_and_its_aged_form_does_not() -> None:
    kept = {}
    for make in (LfuIndex, AgedLfuIndex):
        tree = RadixTree(1, make)
        for _ in range(5):
            insert(tree, (0,))
        for token in range(1, 9):
            insert(tree, (token,))
            insert(tree, (token,))
            tree.evict(len(tree.evictable) - 2)
        kept[make] = {tokens_of(leaf) for leaf in tree.evictable}

    assert (0,) in kept[LfuIndex]
    assert (0,) not in kept[AgedLfuIndex]


def test_gdsf_gives_up_the_shallow_leaf_before_the_deep_one() -> None:
    tree = RadixTree(1, lambda: GdsfIndex(doubling_len=4))
    insert(tree, (1, 1, 1, 1))
    insert(tree, (2,))

    tree.evict(1)

    assert [tokens_of(leaf) for leaf in tree.evictable] == [(1, 1, 1, 1)]


def test_slru_gives_up_newcomers_before_what_was_used_twice() -> None:
    tree = RadixTree(1, SlruIndex)
    for tokens in [(2,), (3,), (1,), (1,)]:
        insert(tree, tokens)

    tree.evict(2)

    assert [tokens_of(leaf) for leaf in tree.evictable] == [(1,)]


def test_slru_puts_the_oldest_back_on_probation_when_too_many_are_protected() -> None:
    tree = RadixTree(1, lambda: SlruIndex(protected_share=0.5))
    for token in (1, 2, 1, 2):
        insert(tree, (token,))
    insert(tree, (3,))

    assert [tokens_of(leaf) for leaf in tree.evictable] == [(1,), (3,), (2,)]
    check_tree(tree)


def test_2q_knows_a_newcomer_again_and_lets_the_others_go_first() -> None:
    tree = RadixTree(1, lambda: TwoQueueIndex(block_bytes=ID_BYTES))
    insert(tree, (1, 5))
    tree.evict(2)
    insert(tree, (1, 5))
    for token in (2, 3, 4):
        insert(tree, (token,))

    tree.evict(2)

    assert [tokens_of(leaf) for leaf in tree.evictable] == [(4,), (1, 5)]


def test_2q_takes_from_the_main_queue_while_newcomers_are_few() -> None:
    tree = RadixTree(1, lambda: TwoQueueIndex(block_bytes=ID_BYTES, newcomer_share=0.5))
    for token in (1, 2):
        insert(tree, (token,))
    tree.evict(2)
    for token in (1, 2, 3):
        insert(tree, (token,))

    tree.evict(1)

    assert [tokens_of(leaf) for leaf in tree.evictable] == [(2,), (3,)]


def test_2q_forgets_the_oldest_ghost() -> None:
    tree = RadixTree(1, lambda: TwoQueueIndex(block_bytes=ID_BYTES, max_ghosts=1))
    for token in (1, 2):
        insert(tree, (token,))
    tree.evict(2)

    for token in (1, 2, 3):
        insert(tree, (token,))

    assert [tokens_of(leaf) for leaf in tree.evictable] == [(1,), (3,), (2,)]
