"""Least likely to pay for its memory first, by what is learned of paths like it.

    class of a leaf     shared by several, and how often it is used
                        one session's: its turn, how that ended, whether it was evicted before
                        left behind where a path branched

For each class the index learns how soon its paths are used again, evicted ones included, and ranks
a leaf by class and age: returns to be had for each tick of keeping it. Under pressure that keeps
some conversations and gives up others at once, where LRU loses each just before it comes back.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, TypeAlias
from zlib import crc32

from sortedcontainers import SortedList

from radixserve.core.eviction.idle_periods import MAX_PERIODS, Group, IdlePeriods
from radixserve.core.eviction.index import EvictionIndex
from radixserve.core.eviction.reuse_stats import NUM_BUCKETS, bucket_of, end_of, hit_densities
from radixserve.errors import InvariantError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from radixserve.core.node import Node

ClassName: TypeAlias = tuple[str, int, str, bool]

TURN_STEPS = (0, 1, 2, 3, 3, 5, 5, 5, 5, 9)
"""Turn -> the least turn of its class."""

REFRESH_EVERY = 32
"""Ends of idle times, of whatever class, after which a class is ranked anew."""

SWEEP = 4
"""Classes whose leaves are moved on to their buckets at each use."""


class LeafClass(Group):
    """The evictable leaves of one class by age, with the rank of each age."""

    __slots__ = ("leaves", "number", "ranked_at", "ranks")

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.leaves: list[OrderedDict[Node, None]] = [OrderedDict() for _ in range(NUM_BUCKETS)]
        self.ranks = [0.0] * NUM_BUCKETS
        self.ranked_at = 0
        """Ends of idle times that had been seen by then."""


class LearnedIndex(EvictionIndex):
    """Lowest expected returns per tick of keeping first; within a class and age the oldest.

    Args:
        max_periods: How many past uses are remembered.
        block_bytes: Bytes of a block's tokens.
    """

    needs_digests = True

    def __init__(self, *, block_bytes: int, max_periods: int = MAX_PERIODS) -> None:
        self._block_bytes = block_bytes
        self._idle = IdlePeriods(max_periods)
        self._classes: dict[ClassName, LeafClass] = {}
        self._in_turn: list[LeafClass] = []
        self._turn = 0
        self._place: dict[Node, tuple[LeafClass, int]] = {}
        self._order: SortedList[tuple[float, int, int, LeafClass]] = SortedList()
        """(rank, class number, bucket, class) of every bucket that holds leaves."""
        self._worst: OrderedDict[Node, None] | None = None
        """The leaves of the first entry."""
        self._left_behind: set[Node] = set()
        self._reborn: set[Node] = set()
        self._clock = 0

    def __repr__(self) -> str:
        return f"<LearnedIndex {len(self)} leaves in {len(self._classes)} classes>"

    # -- the set -------------------------------------------------------------------------------

    def add(self, leaf: Node) -> None:
        """Take in an unlocked leaf. Complexity: O(log classes)."""
        leaf_class = self._class_of(leaf)
        self._put(leaf, leaf_class, bucket_of(self._clock - leaf.last_access))
        key = self._key_of(leaf)
        if key is leaf and key not in self._idle:
            self._idle.begin(key, leaf_class, leaf.last_access, self._clock)

    def remove(self, leaf: Node) -> None:
        """Forget a leaf that is used again, and learn from it. Complexity: O(log classes)."""
        self._take(leaf)
        self._idle.end(self._key_of(leaf), by_return=True)
        self._left_behind.discard(leaf)

    def first(self) -> Node | None:
        """Return the oldest leaf of the worst class and age. Complexity: O(1)."""
        return next(iter(self._worst)) if self._worst is not None else None

    def pop(self) -> Node:
        """Take out the leaf that `first` returns. Complexity: O(log classes)."""
        leaf = self.first()
        assert leaf is not None
        self.evicted(leaf)
        return leaf

    def evicted(self, leaf: Node) -> None:
        """Forget a leaf, but for its digest. Complexity: O(log classes)."""
        self._take(leaf)
        self._idle.evicted(self._key_of(leaf), self._digest(leaf))
        self._left_behind.discard(leaf)
        self._reborn.discard(leaf)

    def __iter__(self) -> Iterator[Node]:
        for _, _, bucket, leaf_class in self._order:
            yield from leaf_class.leaves[bucket]

    def __len__(self) -> int:
        return len(self._place)

    def check(self) -> None:
        """Buckets stand in the order of their ranks, and hold the leaves that say so."""
        ranks = [entry[0] for entry in self._order]
        expected = [entry[3].ranks[entry[2]] for entry in self._order]
        if ranks != sorted(ranks) or ranks != expected:
            raise InvariantError(5, f"the eviction index is out of order: {ranks}, {expected}")
        places = {
            leaf: (leaf_class, bucket)
            for _, _, bucket, leaf_class in self._order
            for leaf in leaf_class.leaves[bucket]
        }
        if places != self._place:
            raise InvariantError(5, "a leaf is filed in another bucket than it should be")

    # -- the news ------------------------------------------------------------------------------

    def born(self, node: Node) -> None:
        """A new run: has it been here before?"""
        if self._idle.published(self._digest(node)):
            self._reborn.add(node)

    def split(self, upper: Node, lower: Node) -> None:
        """Somebody came back for the first part of a leaf; the rest is left behind."""
        if lower in self._place:
            self.remove(lower)
            self._left_behind.add(lower)
            self.add(lower)

    def used(self, end: Node) -> None:
        """An idle time begins. Complexity: O(classes moved on + leaves moved on)."""
        self._clock = end.last_access
        if end in self._reborn:
            self._reborn.discard(end)
            end.use.came_back = True
        if end.lock_ref == 0 and end.children is None and self._key_of(end) is end.use:
            self._idle.begin(end.use, self._class_of(end), self._clock, self._clock)
        self._sweep()

    # -- inside --------------------------------------------------------------------------------

    def _digest(self, node: Node) -> int:
        return crc32(node.first_block(self._block_bytes), node.digest)

    def _key_of(self, leaf: Node) -> Hashable:
        """What comes back or does not: one Req's path as a whole, or a leaf for itself."""
        is_for_itself = leaf.num_branches >= 2 or leaf in self._left_behind
        return leaf if is_for_itself else leaf.use

    def _class_of(self, leaf: Node) -> LeafClass:
        name: ClassName
        if leaf in self._left_behind:
            name = ("left behind", 0, "", False)
        elif leaf.num_branches >= 2:
            gap = (leaf.last_access - leaf.born_at) // max(1, leaf.hits - 1)
            name = ("shared", gap.bit_length(), "", False)
        else:
            use = leaf.use
            turn = TURN_STEPS[min(use.turn, len(TURN_STEPS) - 1)]
            name = ("alone", turn, use.ending.value, use.came_back)
        leaf_class = self._classes.get(name)
        if leaf_class is None:
            self._classes[name] = leaf_class = LeafClass(len(self._classes))
            self._in_turn.append(leaf_class)
            self._rank(leaf_class)
        return leaf_class

    def _put(self, leaf: Node, leaf_class: LeafClass, bucket: int) -> None:
        leaves = leaf_class.leaves[bucket]
        if not leaves:
            self._order.add((leaf_class.ranks[bucket], leaf_class.number, bucket, leaf_class))
            self._find_worst()
        leaves[leaf] = None
        self._place[leaf] = (leaf_class, bucket)

    def _take(self, leaf: Node) -> None:
        leaf_class, bucket = self._place.pop(leaf)
        leaves = leaf_class.leaves[bucket]
        del leaves[leaf]
        if not leaves:
            self._order.remove((leaf_class.ranks[bucket], leaf_class.number, bucket, leaf_class))
            self._find_worst()

    def _find_worst(self) -> None:
        self._worst = None
        if self._order:
            _, _, bucket, leaf_class = self._order[0]
            self._worst = leaf_class.leaves[bucket]

    def _sweep(self) -> None:
        """Let some classes age, and rank those anew of which there is news."""
        for _ in range(min(SWEEP, len(self._in_turn))):
            self._turn = (self._turn + 1) % len(self._in_turn)
            leaf_class = self._in_turn[self._turn]
            leaf_class.age(self._clock, self._idle.pooled)
            self._age_leaves(leaf_class)
            if self._idle.pooled.num_ends - leaf_class.ranked_at >= REFRESH_EVERY:
                self._rank(leaf_class)

    def _age_leaves(self, leaf_class: LeafClass) -> None:
        for bucket, leaves in enumerate(leaf_class.leaves[:-1]):
            if not leaves:
                continue
            end = self._clock - end_of(bucket)
            while leaves and (leaf := next(iter(leaves))).last_access <= end:
                self._take(leaf)
                self._put(leaf, leaf_class, bucket + 1)

    def _rank(self, leaf_class: LeafClass) -> None:
        pooled = self._idle.pooled
        hazards = leaf_class.stats.hazards_beside(pooled.hazards())
        filled = [bucket for bucket in range(NUM_BUCKETS) if leaf_class.leaves[bucket]]
        for bucket in filled:
            self._order.remove((leaf_class.ranks[bucket], leaf_class.number, bucket, leaf_class))
        leaf_class.ranks, leaf_class.ranked_at = hit_densities(hazards), pooled.num_ends
        for bucket in filled:
            self._order.add((leaf_class.ranks[bucket], leaf_class.number, bucket, leaf_class))
        self._find_worst()
