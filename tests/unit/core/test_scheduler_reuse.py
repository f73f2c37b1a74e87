"""What the cache does for Reqs that come one after another, and what it must not do to them."""

from __future__ import annotations

import pytest

from radixserve.core.prefix_cache import UnsharedCache
from tests.kit.builders import Rig


def fresh(length: int, seed: int) -> list[int]:
    """A prompt that begins like no other."""
    return [seed * 100_000 + place for place in range(length)]


@pytest.mark.parametrize("length", range(1, 4 * 4 + 2))
def test_b3_a_prompt_that_is_cached_whole_still_computes_one_token(length: int) -> None:
    rig = Rig(num_blocks=64, block_size=4)
    for name in ("cold", "warm"):
        rig.add(name, fresh(length, 1), max_tokens=4)
        rig.drain()

    rig.assert_all_as_if_alone()
    assert rig.finals["cold"].cached_len == 0
    assert rig.finals["warm"].cached_len == length - 1


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_reuse_is_exact_to_the_token_at_any_block_size(block_size: int) -> None:
    rig = Rig(num_blocks=400, block_size=block_size)
    rig.add("first", fresh(100, 1), max_tokens=40)
    rig.drain()
    for shared in (1, 3, 15, 16, 17, 50, 99):
        rig.add(f"after{shared}", fresh(shared, 1) + fresh(5, 2 + shared), max_tokens=2)
        rig.drain()
        assert rig.finals[f"after{shared}"].cached_len == shared

    rig.assert_all_as_if_alone()


def test_b7_requests_that_decode_the_same_tokens_end_up_with_the_same_blocks() -> None:
    rig = Rig(num_blocks=40, block_size=2)
    rig.add("warm", fresh(10, 1), max_tokens=1)
    rig.drain()
    for name in ("one", "two"):
        rig.add(name, fresh(10, 1), max_tokens=20)
    rig.add("third", fresh(30, 2), max_tokens=20)

    seen_shared = 0
    while rig.scheduler.has_work:
        rig.step()
        if rig.is_running("one") and rig.is_running("two"):
            one, two = rig.req("one").lease, rig.req("two").lease
            assert one is not None
            assert two is not None
            assert one.table[: one.num_shared] == two.table[: two.num_shared]
            seen_shared = max(seen_shared, one.num_shared)

    assert seen_shared > 10
    rig.assert_all_as_if_alone()


def test_b9_a_flush_leaves_a_running_request_alone() -> None:
    rig = Rig(num_blocks=40, block_size=4)
    rig.add("a", fresh(10, 1), max_tokens=40)
    while rig.scheduler.has_work:
        plan = rig.plan()
        rig.cache.flush()
        rig.land(plan)
        rig.cache.flush()
    rig.cache.flush()
    rig.add("b", fresh(10, 1), max_tokens=40)
    rig.drain()

    rig.assert_all_as_if_alone()
    assert rig.finals["b"].cached_len == 0


def test_c5_a_pool_full_of_evictable_blocks_serves_every_allocation() -> None:
    rig = Rig(num_blocks=12, block_size=4)
    rig.add("filler", fresh(48, 1), max_tokens=1)
    rig.drain()
    assert (rig.cache.pool.num_free, rig.cache.tree.num_evictable_blocks) == (0, 12)

    rig.add("a", fresh(20, 2), max_tokens=28)
    rig.drain()

    rig.assert_all_as_if_alone()
    assert rig.scheduler.counters.preemptions == 0


def test_without_a_prefix_cache_nothing_is_shared_and_all_is_served() -> None:
    rig = Rig(num_blocks=64, cache=UnsharedCache(num_blocks=64, block_size=4))
    for i in range(4):
        rig.add(f"r{i}", fresh(20, 1), max_tokens=5)

    rig.drain()

    rig.assert_all_as_if_alone()
    assert rig.runner.computed_tokens == 4 * (20 + 4)
    assert rig.cache.pool.num_free == 64
