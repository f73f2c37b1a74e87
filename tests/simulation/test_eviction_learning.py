"""What the learning policies learn, and what they must not cost."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve.core.eviction import Ending, EvictionIndex, LruIndex, ReleaseHint
from radixserve.core.eviction.adaptive import AdaptiveIndex
from radixserve.core.eviction.fifo import FifoIndex
from radixserve.core.eviction.ghost_list import GhostList
from radixserve.core.eviction.idle_periods import Group, IdlePeriods
from radixserve.core.eviction.learned import LearnedIndex
from radixserve.core.eviction.lfu import AgedLfuIndex
from radixserve.core.eviction.names import POLICY_NAMES, find_eviction_policy
from radixserve.core.eviction.reuse_stats import NUM_BUCKETS, WIDTHS, bucket_of, hit_densities
from radixserve.core.eviction.shadow_cache import ShadowCache
from radixserve.core.radix_tree import RadixTree
from radixserve.errors import ConfigError
from radixserve.types import ID_BYTES, MAX_ID, BlockId, Namespace, pack_ids, unpack_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

NAMELESS = Namespace()
CHANCES = st.lists(st.floats(0.001, 0.999), min_size=NUM_BUCKETS, max_size=NUM_BUCKETS)


def density_when_given_up_after(hazards: Sequence[float], first: int, last: int) -> float:
    """Returns for each tick of keeping a leaf from one age bucket through another."""
    alive, chance, time = 1.0, 0.0, 0.0
    for bucket in range(first, last + 1):
        time += alive * WIDTHS[bucket] * (1 - hazards[bucket] / 2)
        chance += alive * hazards[bucket]
        alive *= 1 - hazards[bucket]
    return chance / time


@given(hazards=CHANCES)
def test_a_density_is_that_of_the_best_time_to_give_up(hazards: list[float]) -> None:
    for first, density in enumerate(hit_densities(hazards)):
        best = max(
            density_when_given_up_after(hazards, first, last) for last in range(first, NUM_BUCKETS)
        )
        assert density == pytest.approx(best)


def test_ages_double_from_bucket_to_bucket() -> None:
    assert [bucket_of(age) for age in (-1, 0, 1, 2, 3, 4, 7, 8)] == [0, 0, 1, 2, 2, 3, 3, 4]
    assert bucket_of(1 << 40) == NUM_BUCKETS - 1


def test_idle_times_are_forgotten_beyond_the_limit_and_ghosts_with_them() -> None:
    idle, group = IdlePeriods(limit=2), Group()
    for key in range(3):
        idle.begin(key, group, since=key, now=key)
        idle.evicted(key, digest=100 + key)

    assert len(idle) == 2
    assert not idle.published(100)
    assert idle.published(101)
    assert group.stats.returns[0] == 1


def test_a_ghost_list_remembers_the_last_ones_once() -> None:
    ghosts = GhostList(limit=2)
    for digest in (1, 2, 1, 3):
        ghosts.add(digest)

    assert len(ghosts) == 2
    assert [ghosts.recall(digest) for digest in (2, 1, 3, 3)] == [False, True, True, False]


class Replay:
    """A tree of one-token blocks that holds so many, and counts what it hits."""

    def __init__(self, capacity: int, make_index: Callable[[], EvictionIndex]) -> None:
        self.tree = RadixTree(1, make_index)
        self.capacity = capacity
        self.hits = 0

    def use(self, tokens: Iterable[int], hint: ReleaseHint | None = None) -> None:
        """Publish a path, then evict what is too much."""
        tokens = list(tokens)
        self.hits += self.tree.match_prefix(pack_ids([*tokens, MAX_ID]), NAMELESS).matched_len
        blocks = [BlockId(0)] * len(tokens)
        self.tree.insert(pack_ids(tokens), blocks, NAMELESS, hint or ReleaseHint())
        self.tree.evict(max(0, self.tree.num_evictable_blocks - self.capacity))


def few_shot(num_uses: int, seed: int) -> list[list[int]]:
    """A question nobody asks twice, below one of some heads, popular ones and others."""
    dice = random.Random(seed)
    heads = [[1000 + head] * 10 for head in range(30)]
    weights = [1 / (1 + place) for place in range(30)]
    chosen = dice.choices(heads, weights, k=num_uses)
    return [[*head, *[5000 + use] * 5] for use, head in enumerate(chosen)]


def chats(num_uses: int, seed: int) -> list[list[int]]:
    """Recently grown sessions grow again; finished ones never do."""
    dice = random.Random(seed)
    sessions, uses = [[session] for session in range(4)], []
    fresh = 4
    for use in range(num_uses):
        place = dice.randrange(4)
        if dice.random() < 0.1:
            sessions[place], fresh = [fresh], fresh + 1
        sessions[place] = [*sessions[place], 10_000 + use]
        uses.append(sessions[place])
    return uses


def hits_of(make: Callable[[], EvictionIndex], capacity: int, uses: list[list[int]]) -> int:
    """Replay some uses."""
    replay = Replay(capacity, make)
    for tokens in uses:
        replay.use(tokens)
    return replay.hits


def test_the_learned_order_gives_up_questions_and_keeps_heads() -> None:
    uses = few_shot(1500, seed=1)

    learned = hits_of(lambda: LearnedIndex(block_bytes=ID_BYTES), 120, uses)

    assert learned > 1.15 * hits_of(LruIndex, 120, uses)


def test_the_learned_order_learns_which_endings_come_back() -> None:
    replay = Replay(60, lambda: LearnedIndex(block_bytes=ID_BYTES))
    lru = Replay(60, LruIndex)
    dice = random.Random(2)
    waiting: list[list[int]] = []
    for use in range(1500):
        tool = dice.random() < 0.5
        tokens = [use] * 10
        hint = ReleaseHint(ending=Ending.TOOL if tool else Ending.TURN)
        for each in (replay, lru):
            each.use(tokens, hint)
        if tool:
            waiting.append(tokens)
        if len(waiting) > 4:
            for each in (replay, lru):
                each.use(waiting[0], ReleaseHint(ending=Ending.TURN))
            waiting.pop(0)

    assert replay.hits > 1.3 * lru.hits


def test_what_came_back_after_its_eviction_is_told_from_what_did_not() -> None:
    tree = RadixTree(1, lambda: LearnedIndex(block_bytes=ID_BYTES))
    tree.insert(pack_ids([1]), [BlockId(0)], NAMELESS)
    tree.evict(1)

    for token in (1, 2):
        tree.insert(pack_ids([token]), [BlockId(0)], NAMELESS)

    came_back = {unpack_ids(leaf.key)[0]: leaf.use.came_back for leaf in tree.evictable}
    assert came_back == {1: True, 2: False}


def adaptive(capacity: int, max_shadow_blocks: int = 4096) -> AdaptiveIndex:
    """Two policies that differ, LRU first."""
    return AdaptiveIndex(
        {"lru": LruIndex, "lfu-da": AgedLfuIndex},
        num_blocks=capacity,
        block_size=1,
        max_shadow_blocks=max_shadow_blocks,
    )


def test_the_adaptive_order_follows_whoever_does_best_lately() -> None:
    index = adaptive(60)
    replay = Replay(60, lambda: index)
    followed = []
    for uses in (chats(500, 1), few_shot(1500, 2), chats(1500, 3)):
        for tokens in uses:
            replay.use(tokens)
        followed.append(index.followed)

    assert followed == ["lru", "lfu-da", "lru"]


def test_the_adaptive_order_gets_nearly_what_the_better_policy_gets() -> None:
    uses = few_shot(2000, seed=5)

    hits = hits_of(lambda: adaptive(60), 60, uses)

    better = hits_of(AgedLfuIndex, 60, uses)
    assert better > 1.1 * hits_of(LruIndex, 60, uses)
    assert hits > 0.95 * better


def test_a_large_cache_is_tried_on_a_share_of_the_sessions() -> None:
    index = adaptive(6000, max_shadow_blocks=600)
    replay = Replay(6000, lambda: index)

    for session in range(4000):
        replay.use([session, 7, 8])

    assert 0.05 < index.num_samples / 4000 < 0.2


def test_a_session_is_in_the_sample_with_all_its_uses_or_with_none() -> None:
    index = adaptive(1000, max_shadow_blocks=500)
    replay = Replay(1000, lambda: index)
    grown = []
    for session in range(40):
        before = index.num_samples
        for turn in range(1, 5):
            replay.use([0, *[100 + session] * 2 * turn])
        grown.append(index.num_samples - before)

    # Until there are some sessions, the node that they share is not seen to be shared.
    assert set(grown[10:]) == {0, 4}


def test_a_shadow_holds_no_more_than_it_may() -> None:
    shadow = ShadowCache(10, 1, FifoIndex)

    hits = [shadow.use(pack_ids([token] * 4), NAMELESS, ReleaseHint()) for token in (1, 2, 3, 3, 1)]

    assert hits == [0, 0, 0, 4, 2]


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_every_name_gives_a_fresh_index_each_time(name: str) -> None:
    make = find_eviction_policy(name, num_blocks=100, block_size=16)

    assert make() is not make()
    assert len(make()) == 0


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"lru, fifo.* got 'mru'"):
        find_eviction_policy("mru", num_blocks=1, block_size=1)


def test_the_policies_that_are_not_followed_hear_of_every_eviction_in_the_end() -> None:
    index = adaptive(1000)
    replay = Replay(1000, lambda: index)
    for token in range(600):
        replay.use([token])

    replay.tree.evict(590)
    index.check()
    assert len(index) == 10
    replay.use([1000])
    index.check()
    assert len(index) == 11
