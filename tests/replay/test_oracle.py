"""Known results over the public Mooncake traces, found by two independent programs."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pytest

from radixserve.replay.optimum import OptimalCache
from radixserve.replay.path_tree import grow_path_tree
from radixserve.replay.readers.detect import read_trace
from radixserve.replay.sequential import replay_sequentially
from tests.replay.public_data import public_file

if TYPE_CHECKING:
    from radixserve.replay.path_tree import PathTree
    from radixserve.replay.trace import Trace

SHARES = (1, 2, 5, 10, 20, 50)

HITS = [
    ("conversation", 1_708, 15_037, 69_137),
    ("conversation", 17_089, 79_693, 105_592),
    ("conversation", 85_449, 104_641, 105_592),
    ("synthetic", 401, 4_359, 21_458),
    ("synthetic", 4_014, 30_334, 60_090),
    ("synthetic", 20_074, 70_852, 77_740),
]
"""Trace, capacity in 512-token blocks, hits of LRU, hits of the optimum."""

OPTIMAL_PERCENT = {
    "conversation": (25.0, 32.1, 38.2, 38.2, 38.2, 38.2),
    "synthetic": (18.2, 25.9, 39.2, 51.0, 61.5, 65.9),
}
LRU_PERCENT = {
    "conversation": (5.4, 8.0, 20.2, 28.8, 35.9, 37.9),
    "synthetic": (3.7, 7.8, 15.5, 25.7, 39.5, 60.1),
}
"""Hit rates at 1, 2, 5, 10, 20 and 50 % of the distinct blocks."""


@cache
def replayed(name: str) -> tuple[Trace, PathTree, OptimalCache]:
    trace = read_trace([public_file(f"mooncake/{name}_trace.jsonl.gz")])
    tree = grow_path_tree(trace)
    return trace, tree, OptimalCache(tree)


@pytest.mark.parametrize(
    ("name", "inputs", "unique"),
    [("conversation", 276_491, 170_899), ("synthetic", 117_888, 40_148)],
)
def test_the_traces_have_as_many_blocks_as_they_should(name: str, inputs: int, unique: int) -> None:
    trace, tree, _ = replayed(name)

    assert trace.num_input_blocks == inputs
    assert tree.num_blocks == unique


@pytest.mark.parametrize(("name", "capacity", "hits", "_optimal"), HITS)
def test_lru_hits_exactly_what_the_oracle_hits(
    name: str, capacity: int, hits: int, _optimal: int
) -> None:
    counts = replay_sequentially(replayed(name)[0], capacity, "lru")

    assert counts.hits == hits


@pytest.mark.parametrize(("name", "capacity", "_hits", "optimal"), HITS)
def test_the_optimum_hits_exactly_what_the_oracle_hits(
    name: str, capacity: int, _hits: int, optimal: int
) -> None:
    assert replayed(name)[2].replay(capacity).hits == optimal


@pytest.mark.parametrize("name", OPTIMAL_PERCENT)
def test_the_optimum_is_within_a_fifth_of_a_point_of_the_table(name: str) -> None:
    trace, tree, optimal = replayed(name)

    for share, expected in zip(SHARES, OPTIMAL_PERCENT[name], strict=True):
        hits = optimal.replay(tree.num_blocks * share // 100).hits
        assert 100 * hits / trace.num_input_blocks == pytest.approx(expected, abs=0.2)


@pytest.mark.parametrize("name", LRU_PERCENT)
def test_lru_is_within_a_fifth_of_a_point_of_the_table(name: str) -> None:
    trace, tree, _ = replayed(name)

    for share, expected in zip(SHARES, LRU_PERCENT[name], strict=True):
        counts = replay_sequentially(trace, tree.num_blocks * share // 100, "lru")
        assert 100 * counts.hit_rate == pytest.approx(expected, abs=0.2)


def test_the_few_shot_batch_hits_twice_as_much_depth_first() -> None:
    trace = read_trace([public_file("few_shot/bbh.jsonl.gz").parent])

    arrival = replay_sequentially(trace, 512, "lru")
    swept = replay_sequentially(trace, 512, "lru", order="dfs")

    assert 100 * arrival.hit_rate == pytest.approx(40.3, abs=1.0)
    assert swept.hits == trace.num_input_blocks - grow_path_tree(trace).num_blocks
