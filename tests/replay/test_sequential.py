from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve.errors import ConfigError
from radixserve.replay.sequential import replay_sequentially
from tests.replay.tiny_traces import make_trace, paths

Block = tuple[int, ...]
"""A block is the path that ends with it."""


def naive_lru_hits(requests: list[list[int]], capacity: int) -> int:
    """Block by block: evict the leaf used longest ago until there are no more than `capacity`."""
    used_at: dict[Block, int] = {}
    hits = 0
    for now, path in enumerate(requests):
        blocks = [tuple(path[: i + 1]) for i in range(len(path))]
        hits += sum(block in used_at for block in blocks)
        used_at.update((block, now) for block in blocks)
        while len(used_at) > capacity:
            parents = {block[:-1] for block in used_at}
            del used_at[min(used_at.keys() - parents, key=used_at.__getitem__)]
    return hits


@given(paths(most_requests=30, most_ids=8), st.integers(1, 12))
def test_lru_equals_a_naive_lru_over_single_blocks(
    requests: list[list[int]], capacity: int
) -> None:
    counts = replay_sequentially(make_trace(requests), capacity, "lru")

    assert counts.hits == naive_lru_hits(requests, capacity)


@given(paths(most_requests=30, most_ids=8), st.integers(1, 12), st.integers(1, 3))
def test_what_is_missed_is_evicted_or_still_there(
    requests: list[list[int]], capacity: int, block_size: int
) -> None:
    counts = replay_sequentially(make_trace(requests, block_size=block_size), capacity, "lru")

    missed = counts.inputs - counts.hits
    assert 0 <= missed - counts.evicted_blocks <= capacity


def test_hits_by_hand() -> None:
    requests = [[1, 2, 3], [1, 2, 4], [5], [1, 2, 3], [1, 2, 3]]

    counts = replay_sequentially(make_trace(requests), 4, "lru")

    # 1 2 3 | 1 2 hit, then 1 2 3 4 are there | 5 pushes 3 out | 1 2 hit, 3 pushes 4 out | all hit
    assert (counts.hits, counts.inputs, counts.evicted_blocks) == (7, 13, 2)


def test_only_whole_blocks_count() -> None:
    requests = [[1, 2, 3], [1, 2, 3, 4], [1, 2, 9, 9]]

    counts = replay_sequentially(make_trace(requests, block_size=2), 10, "lru")

    assert (counts.hits, counts.inputs) == (2, 5)


def test_a_request_longer_than_the_cache_loses_its_own_tail() -> None:
    requests = [[1, 2, 3, 4], [1, 2, 3, 4]]

    counts = replay_sequentially(make_trace(requests), 2, "lru")

    assert (counts.hits, counts.evicted_blocks) == (2, 4)


def test_depth_first_order_finishes_a_subtree_before_it_leaves_it() -> None:
    requests = [[1, 1, 1], [2, 2, 1], [1, 1, 2], [2, 2, 2], [1, 1, 3], [2, 2, 3]]
    batch = make_trace(requests)

    arrival = replay_sequentially(batch, 3, "lru")
    swept = replay_sequentially(batch, 3, "lru", order="dfs", window=6)

    assert (arrival.hits, swept.hits) == (0, 8)


def test_an_order_serves_each_request_once_whatever_the_window() -> None:
    requests = [[number % 3, number] for number in range(20)]

    for window in (1, 2, 7, 50):
        counts = replay_sequentially(make_trace(requests), 100, "lru", order="lpm", window=window)
        assert counts.inputs == 40
        assert counts.hits == 17


@pytest.mark.parametrize(("capacity", "policy"), [(0, "lru"), (10, "no-such-policy")])
def test_what_cannot_be_replayed_is_refused(capacity: int, policy: str) -> None:
    with pytest.raises(ConfigError):
        replay_sequentially(make_trace([[1]]), capacity, policy)
