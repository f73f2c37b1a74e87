from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from radixserve.attention.build import build_metadata
from radixserve.attention.levels import find_levels, saved_tokens
from radixserve.attention.reference import ReferenceAttention
from radixserve.config import CascadeConfig
from radixserve.types import pack_ids
from tests.attention.trees import Batch, batches, gates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.attention.metadata import AttentionMetadata, CascadeLevel

A, B, C, D = ([10 * i + j for j in range(1, 4)] for i in range(1, 5))
SMALL_GATE = CascadeConfig(min_sharers=2, min_shared_tokens=1, max_levels=3)


def decodes(tables: Sequence[Sequence[int]], *, block_size: int = 4) -> AttentionMetadata:
    """Return decodes whose new token is the first one of each table's last block."""
    return build_metadata(
        qo_lens=[1] * len(tables),
        starts=[(len(table) - 1) * block_size for table in tables],
        tables=[pack_ids(table) for table in tables],
        block_size=block_size,
    )


def told(levels: Sequence[CascadeLevel]) -> list[list[tuple[int, int, list[int]]]]:
    """Return each level's segments as (first row, end row, blocks)."""
    return [
        [
            (*level.qo_indptr[i : i + 2].tolist(), level.kv_indices[begin:end].tolist())
            for i, (begin, end) in enumerate(
                zip(level.kv_indptr[:-1].tolist(), level.kv_indptr[1:].tolist(), strict=True)
            )
        ]
        for level in levels
    ]


def test_the_drawing_in_the_docstring_of_levels_is_what_is_found() -> None:
    tables = [[*A, *B, 1], [*A, *B, 2], [*A, 3], [*A, *C, 4], [*D, 5], [6]]

    levels = find_levels(decodes(tables), SMALL_GATE)

    assert told(levels) == [
        [(0, 4, A), (4, 6, [])],
        [(0, 2, B), (2, 6, [])],
        [(0, 1, [1]), (1, 2, [2]), (2, 3, [3]), (3, 4, [*C, 4]), (4, 5, [*D, 5]), (5, 6, [6])],
    ]
    assert [level.kv_last_page_len.tolist() for level in levels] == [[4, 0], [4, 0], [1] * 6]


def test_two_families_side_by_side_are_groups_of_one_level() -> None:
    tables = [[7], [*A, 1], [*A, 2], [*B, 3], [*B, 4], [*B, 5]]

    levels = find_levels(decodes(tables), SMALL_GATE)

    assert told(levels)[0] == [(0, 1, []), (1, 3, A), (3, 6, B)]
    assert len(levels) == 2


def test_where_only_one_level_is_allowed_the_one_that_saves_most_is_taken() -> None:
    trunk, branch = [100], list(range(1, 30))
    tables = [[*trunk, *branch, 50 + i] for i in range(3)] + [[*trunk, 60]]

    levels = find_levels(decodes(tables), replace(SMALL_GATE, max_levels=2))

    assert told(levels)[0] == [(0, 3, trunk + branch), (3, 4, [])]


def test_a_block_that_a_sharer_writes_to_is_nobodys_level() -> None:
    batch = Batch([[1, 2, 3], [1, 2, 4]], starts=[8, 7], qo_lens=[1, 2], block_size=4)

    assert told(find_levels(batch.metadata, SMALL_GATE))[0] == [(0, 3, [1])]


@pytest.mark.parametrize(
    ("gate", "is_shared"),
    [
        (CascadeConfig(min_sharers=8, min_shared_tokens=512), True),
        (CascadeConfig(min_sharers=9, min_shared_tokens=512), False),
        (CascadeConfig(min_sharers=8, min_shared_tokens=513), False),
    ],
)
def test_the_gate_counts_sharers_and_tokens(gate: CascadeConfig, is_shared: bool) -> None:
    shared = list(range(100, 132))
    metadata = decodes([[*shared, i] for i in range(8)], block_size=16)

    assert bool(find_levels(metadata, gate)) == is_shared


def test_one_request_is_flat() -> None:
    assert find_levels(decodes([[1, 2, 3]]), SMALL_GATE) == ()


def test_what_levels_spare_is_all_reads_but_one_of_what_is_shared() -> None:
    tables = [[1, 2, 3, 7], [1, 2, 3, 8], [1, 2, 4, 9], [5, 6]]
    metadata = decodes(tables, block_size=4)

    # Blocks 1 and 2 are read by three, block 3 by two.
    assert saved_tokens(find_levels(metadata, SMALL_GATE), 4) == 4 * (2 * 2 + 1)
    assert saved_tokens((), 4) == 0


def test_one_level_is_off() -> None:
    shared = list(range(100, 132))
    metadata = decodes([[*shared, i] for i in range(8)], block_size=16)

    assert find_levels(metadata, CascadeConfig(max_levels=1)) == ()


def test_a_long_chain_of_ever_deeper_sharing_is_answered_within_the_bound() -> None:
    trunk = list(range(1000, 1300))
    tables = [[*trunk[: i + 1], i] for i in range(300)]

    levels = find_levels(decodes(tables, block_size=1), SMALL_GATE)

    check_structure(decodes(tables, block_size=1), levels, SMALL_GATE)
    assert len(levels) == 3


@settings(max_examples=80, deadline=None)
@given(batches(), gates)
def test_levels_are_the_flat_batch_divided(batch: Batch, gate: CascadeConfig) -> None:
    levels = find_levels(batch.metadata, gate)

    event(f"{len(levels)} levels")
    if levels:
        check_structure(batch.metadata, levels, gate)


def check_structure(
    metadata: AttentionMetadata, levels: Sequence[CascadeLevel], gate: CascadeConfig
) -> None:
    """Assert what every kernel takes for granted, and that nothing is lost or read twice."""
    assert 2 <= len(levels) <= gate.max_levels
    paths: list[list[int]] = [[] for _ in range(metadata.num_reqs)]
    first_rows = metadata.qo_indptr.tolist()
    for depth, level in enumerate(levels):
        rows, counts = level.qo_indptr.tolist(), level.kv_indptr.diff().tolist()
        assert rows[0] == 0
        assert rows[-1] == metadata.num_tokens
        assert rows == sorted(set(rows)), "a segment without rows"
        assert level.kv_indptr[0] == 0
        assert int(level.kv_indptr[-1]) == len(level.kv_indices)
        assert len(rows) - 1 == len(counts) == len(level.kv_last_page_len)
        for tensor in (level.qo_indptr, level.kv_indptr, level.kv_indices, level.kv_last_page_len):
            assert tensor.dtype == torch.int32
            assert tensor.is_contiguous()
        is_private = depth == len(levels) - 1
        for begin, end, blocks in told([level])[0]:
            reqs = range(first_rows.index(begin), first_rows.index(end))
            for req in reqs:
                paths[req] += blocks
            if blocks and not is_private:
                assert len(reqs) >= gate.min_sharers
                assert len(blocks) * metadata.block_size >= gate.min_shared_tokens
        if not is_private:
            expected = [metadata.block_size if count else 0 for count in counts]
            assert level.kv_last_page_len.tolist() == expected
            assert any(counts), "a level of nothing"
    assert torch.equal(levels[-1].qo_indptr, metadata.qo_indptr)
    assert torch.equal(levels[-1].kv_last_page_len, metadata.kv_last_page_len)
    own_lens = levels[-1].kv_indptr.diff() * metadata.block_size
    own_lens -= metadata.block_size - metadata.kv_last_page_len
    assert bool((own_lens >= metadata.qo_indptr.diff()).all()), "a new token is in a shared level"
    assert [block for path in paths for block in path] == metadata.kv_indices.tolist()


@settings(max_examples=20, deadline=None)
@given(batches(), gates, st.sampled_from([1, 2, 4]), st.integers(0, 99))
def test_attention_by_levels_is_flat_attention(
    batch: Batch, gate: CascadeConfig, group_size: int, seed: int
) -> None:
    metadata = batch.metadata
    levels = find_levels(metadata, gate)
    assume(levels)
    layer = batch.draw_layer(num_kv_heads=2, head_dim=8, dtype=torch.float64, seed=seed)
    backend = ReferenceAttention([layer], num_qo_heads=2 * group_size)
    generator = torch.Generator().manual_seed(seed)
    heads = 2 * group_size + 4
    rows = torch.randn(metadata.num_tokens, heads, 8, generator=generator, dtype=torch.float64)
    q, k, v = torch.split(rows, [2 * group_size, 2, 2], dim=1)

    backend.plan(metadata)
    flat = backend.run(0, q, k, v)
    backend.plan(replace(metadata, levels=levels))
    by_levels = backend.run(0, q, k, v)

    assert bool(flat.isfinite().all())
    torch.testing.assert_close(by_levels, flat, rtol=1e-12, atol=1e-12)
