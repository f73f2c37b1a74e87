from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from radixserve.replay.path_tree import grow_path_tree
from tests.replay.tiny_traces import make_trace, paths


def test_nodes_are_cut_where_paths_end_and_where_they_part() -> None:
    tree = grow_path_tree(make_trace([[1, 2, 3, 4], [1, 2, 5, 6], [1, 2, 3]]))

    sizes = [[tree.sizes[node] for node in tree.path(end)] for end in tree.ends]
    assert sizes == [[1, 1, 2], [2, 2], [1, 2]]
    assert tree.num_blocks == 6


def test_a_path_that_an_earlier_one_extends_is_cut_off_from_it() -> None:
    tree = grow_path_tree(make_trace([[1, 2], [1, 2, 3, 4], [1, 2, 3]]))

    sizes = [[tree.sizes[node] for node in tree.path(end)] for end in tree.ends]
    assert sizes == [[2], [1, 1, 2], [1, 2]]


@given(paths(most_requests=20, most_ids=8), st.integers(1, 3))
def test_a_path_has_as_many_blocks_as_its_prompt(
    requests: list[list[int]], block_size: int
) -> None:
    trace = make_trace(requests, block_size=block_size)

    tree = grow_path_tree(trace)

    lengths = [sum(tree.sizes[node] for node in tree.path(end)) for end in tree.ends]
    assert lengths == [n for n in map(trace.num_full_blocks, trace.requests) if n]
    blocks = {tuple(p[:i]) for p in requests for i in range(1, len(p) + 1) if i % block_size == 0}
    assert tree.num_blocks == len(blocks)
