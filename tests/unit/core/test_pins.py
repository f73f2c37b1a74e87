"""Pins: what is granted, what is refused with which numbers, and that nothing depends on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve.core.eviction import LruIndex, ReleaseHint
from radixserve.core.eviction.hinted import HintedIndex
from radixserve.core.invariants import check_cache
from radixserve.core.pins import MAX_PINS, PinAnswer, PinRequest
from radixserve.core.prefix_cache import PrefixCache
from radixserve.types import Namespace, pack_ids

if TYPE_CHECKING:
    from collections.abc import Iterable

NAMELESS = Namespace()


def make_cache(*, num_blocks: int = 20, max_held_blocks: int = 10) -> PrefixCache:
    """A cache of one-token blocks with a budget for holds."""
    return PrefixCache(
        num_blocks=num_blocks,
        block_size=1,
        make_index=lambda: HintedIndex(LruIndex(), max_held_blocks=max_held_blocks),
    )


def publish(
    cache: PrefixCache, tokens: Iterable[int], hint: ReleaseHint | None = None
) -> list[int]:
    """Leave a path in the tree; return its blocks."""
    tokens = [*tokens]
    key = pack_ids([*tokens, 0])
    acquired = cache.acquire(cache.match(key, NAMELESS), len(tokens) + 1)
    assert acquired is not None
    cache.commit(acquired.lease, key, len(tokens))
    blocks = acquired.lease.table.tolist()[:-1]
    cache.release(acquired.lease, hint or ReleaseHint())
    check_cache(cache, [])
    return blocks


def pin(cache: PrefixCache, tokens: Iterable[int], name: str = "", ttl_s: float = 60) -> PinAnswer:
    answer = cache.pins.pin(
        PinRequest(key=pack_ids(tokens), namespace=NAMELESS, ttl_s=ttl_s, name=name)
    )
    check_cache(cache, [])
    return answer


def is_cached(cache: PrefixCache, tokens: list[int]) -> bool:
    return cache.match(pack_ids([*tokens, 0]), NAMELESS).matched_len == len(tokens)


def test_a_pinned_path_outlives_paths_that_were_used_later() -> None:
    cache = make_cache()
    publish(cache, [1, 2, 3])
    pin(cache, [1, 2, 3])
    publish(cache, [4, 5])

    assert cache.evict(2) == 2

    assert is_cached(cache, [1, 2, 3])
    assert not is_cached(cache, [4])


def test_a_pin_of_a_shared_prefix_holds_once_what_follows_has_gone() -> None:
    cache = make_cache()
    publish(cache, [1, 2, 3])
    publish(cache, [1, 2, 4])
    pin(cache, [1, 2])
    publish(cache, [7, 8])

    cache.evict(4)

    assert is_cached(cache, [1, 2])
    assert cache.num_cached_blocks() == 2


def test_a_pin_holds_what_is_cached_of_a_prefix_and_says_how_much() -> None:
    cache = make_cache()
    publish(cache, [1, 2, 3])

    answer = pin(cache, [1, 2, 9, 9])

    assert (answer.asked_len, answer.cached_len, answer.cost_blocks) == (4, 2, 2)
    assert (answer.held_blocks, answer.max_held_blocks) == (2, 10)


def test_nothing_cached_is_nothing_pinned() -> None:
    cache = make_cache()

    answer = pin(cache, [1, 2])

    assert not answer.is_pinned
    assert answer.cached_len == 0
    assert len(cache.pins) == 0


def test_more_than_the_budget_is_refused_with_the_numbers_and_changes_nothing() -> None:
    cache = make_cache(max_held_blocks=4)
    publish(cache, [1, 2, 3])
    publish(cache, [4, 5, 6])
    pin(cache, [1, 2, 3])
    drawn = repr(cache), list(cache.tree.evictable)

    answer = pin(cache, [4, 5, 6])

    assert not answer.is_pinned
    assert (answer.cost_blocks, answer.held_blocks, answer.max_held_blocks) == (3, 3, 4)
    assert (repr(cache), list(cache.tree.evictable)) == drawn


def test_pins_that_share_a_prefix_pay_for_it_once() -> None:
    cache = make_cache(max_held_blocks=4)
    publish(cache, [1, 2, 3])
    publish(cache, [1, 2, 4])

    assert pin(cache, [1, 2, 3]).held_blocks == 3
    assert pin(cache, [1, 2, 4]).held_blocks == 4


def test_a_cache_whose_order_knows_no_holds_refuses_every_pin() -> None:
    cache = PrefixCache(num_blocks=9, block_size=1)
    publish(cache, [1, 2])

    answer = pin(cache, [1, 2])

    assert not answer.is_pinned
    assert answer.max_held_blocks == 0


def test_when_nothing_else_is_left_pinned_paths_go_too() -> None:
    cache = make_cache(num_blocks=6)
    publish(cache, [1, 2, 3])
    pin(cache, [1, 2, 3])

    blocks = publish(cache, [4, 5, 6, 7, 8])

    assert len(blocks) == 5
    assert len(cache.pins) == 0
    assert cache.pins.num_lost == 1
    assert cache.pins.held_blocks == 0


def test_a_pin_that_memory_cost_its_end_says_so() -> None:
    cache = make_cache(num_blocks=6)
    publish(cache, [1, 2, 3])
    pin(cache, [1, 2, 3])

    publish(cache, [4, 5, 6])

    [kept] = cache.pins
    assert (kept.asked_len, kept.pinned_len) == (3, 2)


def test_a_pin_ends_by_the_clock() -> None:
    cache = make_cache()
    publish(cache, [1, 2])
    pin(cache, [1, 2], ttl_s=10)
    publish(cache, [3, 4])

    cache.tick(10.0)

    assert len(cache.pins) == cache.pins.held_blocks == 0
    cache.evict(2)
    assert not is_cached(cache, [1])


def test_a_name_in_use_gets_the_new_path() -> None:
    cache = make_cache()
    publish(cache, [1, 2])
    publish(cache, [3, 4, 5])
    pin(cache, [1, 2], name="system")

    pin(cache, [3, 4, 5], name="system")

    assert [each.pinned_len for each in cache.pins] == [3]
    assert cache.pins.held_blocks == 3


def test_a_pin_is_given_up_by_name_or_by_prefix() -> None:
    cache = make_cache()
    publish(cache, [1, 2, 3])
    pin(cache, [1, 2, 3], name="a")
    pin(cache, [1, 2, 3], name="b")
    pin(cache, [1, 2], name="c")

    assert cache.pins.unpin("c")
    assert not cache.pins.unpin("c")
    assert cache.pins.unpin_prefix(pack_ids([1, 2]), NAMELESS) == []
    assert cache.pins.unpin_prefix(pack_ids([1, 2, 3]), Namespace(salt="x")) == []
    assert cache.pins.unpin_prefix(pack_ids([1, 2, 3]), NAMELESS) == ["a", "b"]
    assert cache.pins.held_blocks == 0


def test_the_shorter_of_two_pins_stays_when_the_longer_one_is_given_up() -> None:
    cache = make_cache()
    publish(cache, [1, 2])
    pin(cache, [1, 2], name="long", ttl_s=100)
    pin(cache, [1, 2], name="short", ttl_s=10)
    cache.pins.unpin("long")
    publish(cache, [3, 4])

    cache.tick(9.0)
    assert next(iter(cache.tree.evictable)).first_block(4) == pack_ids([3])
    cache.tick(10.0)
    assert next(iter(cache.tree.evictable)).first_block(4) == pack_ids([1])


def test_a_hint_that_holds_for_longer_outlives_a_pin() -> None:
    cache = make_cache()
    publish(cache, [1, 2], ReleaseHint(hold_s=100))
    pin(cache, [1, 2], name="a", ttl_s=10)
    publish(cache, [3, 4])

    cache.tick(10.0)

    cache.evict(2)
    assert is_cached(cache, [1, 2])


def test_the_end_of_a_session_does_not_unpin() -> None:
    cache = make_cache()
    publish(cache, [1, 2])
    pin(cache, [1, 2])
    publish(cache, [1, 2, 3], ReleaseHint(is_session_end=True))
    publish(cache, [4, 5])

    cache.evict(3)

    assert is_cached(cache, [1, 2])
    assert not is_cached(cache, [1, 2, 3])


def test_what_grows_from_a_pinned_leaf_is_not_pinned_with_it() -> None:
    cache = make_cache(max_held_blocks=2)
    publish(cache, [1, 2])
    pin(cache, [1, 2])

    publish(cache, [1, 2, 3, 4, 5])

    assert cache.pins.held_blocks == 2
    cache.evict(3)
    assert is_cached(cache, [1, 2])


def test_a_flush_drops_pins() -> None:
    cache = make_cache()
    publish(cache, [1, 2])
    pin(cache, [1, 2])

    assert cache.flush() == 2

    assert len(cache.pins) == cache.pins.held_blocks == 0
    check_cache(cache, [])


def test_a_pinned_path_that_is_in_use_survives_a_flush() -> None:
    cache = make_cache()
    publish(cache, [1, 2])
    pin(cache, [1, 2])
    handle = cache.tree.lock(cache.match(pack_ids([1, 2, 0]), NAMELESS))

    assert cache.flush() == 0

    assert len(cache.pins) == 1
    cache.tree.unlock(handle)
    check_cache(cache, [])


def test_pins_have_a_number_of_their_own_too() -> None:
    cache = make_cache()
    publish(cache, [1])
    for _ in range(MAX_PINS):
        cache.pins.pin(PinRequest(key=pack_ids([1]), namespace=NAMELESS, ttl_s=1))

    answer = cache.pins.pin(PinRequest(key=pack_ids([1]), namespace=NAMELESS, ttl_s=1))

    assert not answer.is_pinned
    assert answer.num_pins == MAX_PINS
    cache.tick(1.0)
    assert len(cache.pins) == 0


def test_a_flush_of_one_namespace_leaves_the_others() -> None:
    cache = make_cache()
    publish(cache, [1, 2])
    other = Namespace(salt="x")
    cache.tree.insert(pack_ids([1, 2, 3]), cache.pool.allocate(3) or [], other)

    assert (cache.num_cached_blocks(NAMELESS), cache.num_cached_blocks(other)) == (2, 3)
    assert cache.flush(other) == 3
    assert cache.flush(other) == 0
    assert (cache.num_cached_blocks(NAMELESS), cache.num_cached_blocks(other)) == (2, 0)
    check_cache(cache, [])
