from __future__ import annotations

from functools import cache
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve.replay.optimum import OptimalCache
from radixserve.replay.path_tree import grow_path_tree
from radixserve.replay.sequential import replay_sequentially
from tests.replay.tiny_traces import make_trace, paths

Block = tuple[int, ...]
"""A block is the path that ends with it."""


def optimal_hits(requests: list[list[int]], capacity: int) -> int:
    return OptimalCache(grow_path_tree(make_trace(requests))).replay(capacity).hits


def most_hits_by_trying_everything(requests: list[list[int]], capacity: int) -> int:
    """Try every prefix-closed set of at most `capacity` blocks after every request."""
    blocks = [tuple(tuple(path[: i + 1]) for i in range(len(path))) for path in requests]

    @cache
    def best_from(number: int, held: frozenset[Block]) -> int:
        if number == len(blocks):
            return 0
        path = blocks[number]
        hits = sum(block in held for block in path)
        everything = held | set(path)
        return hits + max(best_from(number + 1, kept) for kept in subsets(everything))

    def subsets(everything: frozenset[Block]) -> list[frozenset[Block]]:
        size = min(capacity, len(everything))
        chosen = map(frozenset, combinations(sorted(everything), size))
        return [kept for kept in chosen if all(len(b) == 1 or b[:-1] in kept for b in kept)]

    return best_from(0, frozenset())


@given(paths(most_requests=6, most_ids=3), st.integers(1, 4))
def test_nothing_hits_more_than_the_optimum(requests: list[list[int]], capacity: int) -> None:
    assert optimal_hits(requests, capacity) == most_hits_by_trying_everything(requests, capacity)


@given(paths(most_requests=25, most_ids=8), st.integers(1, 12))
def test_lru_never_hits_more_than_the_optimum(requests: list[list[int]], capacity: int) -> None:
    lru = replay_sequentially(make_trace(requests), capacity, "lru")

    assert lru.hits <= optimal_hits(requests, capacity)


@given(paths(most_requests=25, most_ids=8))
def test_with_room_for_all_only_first_uses_miss(requests: list[list[int]]) -> None:
    trace = make_trace(requests)
    tree = grow_path_tree(trace)

    optimum = OptimalCache(tree).replay(tree.num_blocks)

    assert optimum.hits == trace.num_input_blocks - tree.num_blocks
    assert optimum.evicted_blocks == 0


@pytest.mark.parametrize(("capacity", "lru", "optimal"), [(1, 0, 2), (2, 0, 3), (3, 0, 4)])
def test_a_loop_that_is_larger_than_the_cache(capacity: int, lru: int, optimal: int) -> None:
    # LRU throws each one out just before it returns; the optimum keeps some and lets others pass.
    requests = [[number] for number in (0, 1, 2, 3, 0, 1, 2, 3, 0)]

    assert replay_sequentially(make_trace(requests), capacity, "lru").hits == lru
    assert optimal_hits(requests, capacity) == optimal
