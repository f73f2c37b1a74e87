"""A tree of a given size, and what its operations cost there."""

from __future__ import annotations

import gc
import random
from array import array
from typing import TYPE_CHECKING

from benchmarks.core_rows import Row, make_row, progress, timed
from radixserve.core.eviction.lru import LruIndex
from radixserve.core.eviction.names import find_eviction_policy
from radixserve.core.radix_tree import RadixTree
from radixserve.types import BlockId, Namespace, PackedIds

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve.core.eviction import EvictionIndex

BLOCK_SIZE = 16
NUM_PREFIXES = 100
PREFIX_LEN = 512
CONVERSATION_LEN = 8192
NUM_TURNS = 8
EVICT_BLOCKS = 64
NAMELESS = Namespace()


class GrownTree:
    """A tree with a given number of leaves, and the means to keep it at that size."""

    def __init__(
        self,
        num_leaves: int,
        leaf_len: int,
        dice: random.Random,
        make_index: Callable[[], EvictionIndex] = LruIndex,
    ) -> None:
        self.tree = RadixTree(BLOCK_SIZE, make_index)
        self.leaf_len = leaf_len
        self._dice = dice
        self._next_block = 0
        self._prefixes = [self.tokens(PREFIX_LEN) for _ in range(NUM_PREFIXES)]
        for _ in range(num_leaves):
            self.insert(self.leaf())
        self.conversation = self.tokens(CONVERSATION_LEN)
        turn_bytes = len(self.conversation) // NUM_TURNS
        for turn in range(1, NUM_TURNS + 1):
            self.insert(self.conversation[: turn * turn_bytes])
            self.insert(self.conversation[: turn * turn_bytes] + self.tokens(leaf_len))
        self.question = self.conversation + self.tokens(1)

    def tokens(self, length: int) -> PackedIds:
        """Random ids below 2**16, packed."""
        return array("I", array("H", self._dice.randbytes(2 * length))).tobytes()

    def leaf(self) -> PackedIds:
        """A shared prefix and a suffix that nobody else has."""
        return self._dice.choice(self._prefixes) + self.tokens(self.leaf_len)

    def blocks(self, key: PackedIds) -> list[BlockId]:
        """Block ids for a key. A tree does not mind which they are."""
        first = self._next_block
        self._next_block = first + len(key) // (4 * BLOCK_SIZE)
        return [BlockId(block) for block in range(first, self._next_block)]

    def insert(self, key: PackedIds) -> None:
        """Publish a sequence."""
        self.tree.insert(key, self.blocks(key), NAMELESS)


def measure_lookups(grown: GrownTree, leaves: int, samples: int) -> list[Row]:
    """Match, and lock with unlock."""
    tree, key = grown.tree, grown.question
    # The first lock splits the node in which the match ends; those that are timed find it split.
    tree.unlock(tree.lock(tree.match_prefix(key, NAMELESS)))
    match = tree.match_prefix(key, NAMELESS)
    assert match.matched_len == CONVERSATION_LEN
    matching = [timed(lambda: tree.match_prefix(key, NAMELESS)) for _ in range(samples)]
    locking = [timed(lambda: tree.unlock(tree.lock(match))) for _ in range(samples)]
    return [
        make_row("match 8,192 cached tokens", leaves, matching),
        make_row("lock + unlock of that match", leaves, locking),
    ]


def measure_turnover(grown: GrownTree, leaves: int, samples: int, kind: str) -> list[Row]:
    """Insert and evict in turns, so that the tree keeps its size."""
    tree = grown.tree
    a_round = EVICT_BLOCKS * BLOCK_SIZE // grown.leaf_len
    inserting, evicting = [], []
    for _ in range(samples):
        for key in [grown.leaf() for _ in range(a_round)]:
            blocks = grown.blocks(key)
            inserting.append(timed(lambda k=key, b=blocks: tree.insert(k, b, NAMELESS)))  # type: ignore[misc]
        before = tree.num_evictable_blocks
        evicting.append(timed(lambda: tree.evict(EVICT_BLOCKS)))
        assert before - tree.num_evictable_blocks == EVICT_BLOCKS
    return [
        make_row(f"insert a leaf ({kind})", leaves, inserting),
        make_row(f"evict 64 blocks ({kind})", leaves, evicting),
    ]


def measure_tree(leaves: int, samples: int, seed: int) -> list[Row]:
    """All the tree's operations at one size."""
    rows = []
    for kind, leaf_len in (("turns", 128), ("1-block", BLOCK_SIZE)):
        progress(f"growing a tree of {leaves:,} leaves ({kind}) ...")
        grown = GrownTree(leaves, leaf_len, random.Random(seed))
        gc.collect()
        gc.disable()
        try:
            if kind == "turns":
                rows += measure_lookups(grown, leaves, samples)
            rows += measure_turnover(grown, leaves, samples, kind)
        finally:
            gc.enable()
        del grown
    return rows


def measure_policy(name: str, leaves: int, samples: int, seed: int) -> list[Row]:
    """What an eviction policy costs: evicting 64 blocks from a tree of conversations.

    The policy is made for a pool of just the tree's size, as in a server that is full.
    """
    progress(f"eviction policy {name}: growing a tree of {leaves:,} leaves ...")
    num_blocks = leaves * 8 + NUM_PREFIXES * PREFIX_LEN // BLOCK_SIZE
    make_index = find_eviction_policy(name, num_blocks=num_blocks, block_size=BLOCK_SIZE)
    grown = GrownTree(leaves, 8 * BLOCK_SIZE, random.Random(seed), make_index)
    gc.collect()
    gc.disable()
    try:
        return measure_turnover(grown, leaves, samples, name)[1:]
    finally:
        gc.enable()
