from __future__ import annotations

import pytest

from radixserve.core.invariants import check_cache
from radixserve.core.plan import BlockCopy
from radixserve.core.prefix_cache import Lease, PrefixCache, PrivateTail, UnsharedCache
from radixserve.errors import InvariantError
from radixserve.types import BlockId, Namespace, pack_ids

NAMELESS = Namespace()


def acquire(cache: PrefixCache, tokens: list[int], **fields: int) -> Lease:
    acquired = cache.acquire(cache.match(pack_ids(tokens), NAMELESS), len(tokens), **fields)  # type: ignore[arg-type]
    assert acquired is not None
    return acquired.lease


def publish(cache: PrefixCache, tokens: list[int]) -> list[int]:
    """Compute a sequence, leave its full blocks in the tree, return its blocks."""
    lease = acquire(cache, tokens)
    table = lease.table.tolist()
    cache.commit(lease, pack_ids(tokens), len(tokens))
    cache.release(lease)
    check_cache(cache, [])
    return table


def counts(cache: PrefixCache) -> tuple[int, int, int, int]:
    tree = cache.tree
    return (
        cache.pool.num_free,
        cache.num_private_blocks,
        tree.num_evictable_blocks,
        tree.num_protected_blocks,
    )


def test_blocks_go_from_free_to_private_to_cached_and_back() -> None:
    cache = PrefixCache(num_blocks=10, block_size=2)
    lease = acquire(cache, [1, 2, 3, 4, 5])
    assert counts(cache) == (7, 3, 0, 0)

    cache.commit(lease, pack_ids([1, 2, 3, 4, 5]), 5)
    assert counts(cache) == (7, 1, 0, 2)

    cache.release(lease)
    assert counts(cache) == (8, 0, 2, 0)

    assert cache.evict(1) == 1
    assert counts(cache) == (9, 0, 1, 0)
    assert cache.flush() == 1
    assert counts(cache) == (10, 0, 0, 0)
    assert (cache.num_evicted_blocks, cache.num_flushed_blocks) == (1, 1)


def test_only_tokens_that_were_computed_are_published() -> None:
    cache = PrefixCache(num_blocks=10, block_size=2)
    lease = acquire(cache, [1, 2, 3, 4, 5])

    for computed_len, published in ((1, 0), (2, 1), (3, 1), (4, 2), (5, 2)):
        cache.commit(lease, pack_ids([1, 2, 3, 4, 5]), computed_len)
        assert lease.num_shared == published
        check_cache(cache, [lease])


def test_a_partly_matching_block_is_copied_into_the_first_private_one() -> None:
    cache = PrefixCache(num_blocks=10, block_size=4)
    table = publish(cache, [1, 2, 3, 4, 5, 6, 7, 8])

    acquired = cache.acquire(cache.match(pack_ids([1, 2, 3, 4, 5, 6, 9]), NAMELESS), 7)

    assert acquired is not None
    assert acquired.cached_len == 6
    assert acquired.lease.table[0] == table[0]
    assert acquired.copy == BlockCopy(BlockId(table[1]), BlockId(acquired.lease.table[1]), 2)
    assert cache.flush() == 0, "the source is pinned"
    cache.copy_made(acquired.lease)
    assert cache.flush() == 1
    check_cache(cache, [acquired.lease])


@pytest.mark.parametrize(("private_len", "expected"), [(1, 2), (2, 2), (3, 3)])
def test_the_longer_of_two_tails_is_copied(private_len: int, expected: int) -> None:
    cache = PrefixCache(num_blocks=10, block_size=4)
    table = publish(cache, [1, 2, 3, 4])
    match = cache.match(pack_ids([1, 2, 9, 9, 9]), NAMELESS)

    acquired = cache.acquire(match, 5, private_tail=PrivateTail(BlockId(9), private_len))

    assert acquired is not None
    assert acquired.copy is not None
    assert acquired.cached_len == acquired.copy.num_tokens == expected
    assert acquired.copy.source == (9 if expected == 3 else table[0])
    assert (acquired.lease.tail_pin is not None) == (expected == 2)


def test_a_tail_is_given_up_where_it_decides_between_fitting_and_not() -> None:
    cache = PrefixCache(num_blocks=2, block_size=4)
    publish(cache, [1, 2, 3, 4, 5, 6, 7, 8])
    match = cache.match(pack_ids([1, 2, 3, 4, 5, 6, 9, 9]), NAMELESS)
    assert match.total_len == 6

    acquired = cache.acquire(match, 8)

    assert acquired is not None
    assert (acquired.cached_len, acquired.copy) == (4, None)
    check_cache(cache, [acquired.lease])


def test_what_cannot_be_had_changes_nothing_not_even_an_age() -> None:
    cache = PrefixCache(num_blocks=4, block_size=1)
    publish(cache, [1])
    publish(cache, [2])
    match = cache.match(pack_ids([1, 3, 3, 3, 3]), NAMELESS)
    before = counts(cache)

    assert cache.acquire(match, 5) is None
    assert cache.acquire(match, 3, reserve=2) is None

    assert counts(cache) == before
    assert cache.evict(1) == 1
    assert cache.match(pack_ids([1, 9]), NAMELESS).matched_len == 0, "1 was still the older"


def test_a_reserve_stays_available() -> None:
    cache = PrefixCache(num_blocks=5, block_size=1)

    lease = acquire(cache, [1, 2, 3], reserve=2)

    assert cache.num_available_blocks == 2
    check_cache(cache, [lease])


def test_extend_evicts_what_it_needs_and_no_more() -> None:
    cache = PrefixCache(num_blocks=6, block_size=1)
    publish(cache, [1, 2, 3])
    lease = acquire(cache, [7, 7])
    assert counts(cache) == (1, 2, 3, 0)

    assert cache.extend(lease, 5)

    assert counts(cache) == (0, 5, 1, 0)
    assert not cache.extend(lease, 7)
    assert counts(cache) == (0, 5, 1, 0)
    assert cache.extend(lease, 4), "shrinking is nothing to do"
    check_cache(cache, [lease])


def test_the_loser_of_a_race_names_the_winners_blocks_before_its_own_are_freed() -> None:
    cache = PrefixCache(num_blocks=10, block_size=2)
    tokens = [1, 2, 3, 4, 5]
    one, two = acquire(cache, tokens), acquire(cache, tokens)
    own = two.table.tolist()
    cache.commit(one, pack_ids(tokens), 4)

    cache.commit(two, pack_ids(tokens), 4)

    assert two.table.tolist() == [*one.table[:2], own[2]]
    assert all(cache.pool.is_free(block) for block in map(BlockId, own[:2]))
    check_cache(cache, [one, two])


def test_a_released_lease_cannot_be_used_again() -> None:
    cache = PrefixCache(num_blocks=10, block_size=2)
    lease = acquire(cache, [1, 2, 3])
    cache.release(lease)

    with pytest.raises(InvariantError) as caught:
        cache.release(lease)

    assert caught.value.number == 4
    check_cache(cache, [])


def test_releasing_before_the_copy_was_made_lets_go_of_its_source() -> None:
    cache = PrefixCache(num_blocks=10, block_size=4)
    publish(cache, [1, 2, 3, 4])
    lease = acquire(cache, [1, 2, 9])
    assert lease.tail_pin is not None

    cache.release(lease)

    check_cache(cache, [])
    assert cache.flush() == 1
    assert cache.pool.num_free == 10


def test_an_unshared_cache_finds_and_publishes_nothing() -> None:
    cache = UnsharedCache(num_blocks=10, block_size=2)
    for _ in range(2):
        lease = acquire(cache, [1, 2, 3, 4])
        cache.commit(lease, pack_ids([1, 2, 3, 4]), 4)
        assert counts(cache) == (8, 2, 0, 0)
        check_cache(cache, [lease])
        assert cache.match(pack_ids([1, 2, 3]), NAMELESS).total_len == 0
        cache.release(lease)
    assert cache.pool.num_free == 10
