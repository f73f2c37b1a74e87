from __future__ import annotations

import pytest
import torch

from radixserve.attention.build import build_metadata
from radixserve.errors import InvariantError
from radixserve.types import pack_ids


def test_the_drawing_in_the_docstring_of_metadata_is_what_is_built() -> None:
    metadata = build_metadata(
        qo_lens=[3, 3, 1],
        starts=[0, 6, 4],
        tables=[pack_ids([7]), pack_ids([2, 9, 4]), pack_ids([8, 1])],
        block_size=4,
    )

    assert metadata.qo_indptr.tolist() == [0, 3, 6, 7]
    assert metadata.kv_lens.tolist() == [3, 9, 5]
    assert metadata.kv_indptr.tolist() == [0, 1, 4, 6]
    assert metadata.kv_indices.tolist() == [7, 2, 9, 4, 8, 1]
    assert metadata.kv_last_page_len.tolist() == [3, 1, 1]
    assert metadata.positions.tolist() == [0, 1, 2, 6, 7, 8, 4]
    assert metadata.slot_mapping.tolist() == [28, 29, 30, 38, 39, 16, 4]
    assert (metadata.num_reqs, metadata.num_tokens, metadata.block_size) == (3, 7, 4)
    assert metadata.levels == ()


def test_the_dtypes_are_those_of_the_contract() -> None:
    metadata = build_metadata(qo_lens=[1], starts=[0], tables=[pack_ids([0])], block_size=1)

    for name in ("qo_indptr", "kv_indptr", "kv_indices", "kv_last_page_len", "kv_lens"):
        assert getattr(metadata, name).dtype == torch.int32, name
    for name in ("slot_mapping", "positions"):
        assert getattr(metadata, name).dtype == torch.int64, name


def test_blocks_that_a_request_does_not_need_yet_are_left_out() -> None:
    tables = [pack_ids([5, 6, 7]), pack_ids([8, 9])]
    metadata = build_metadata(qo_lens=[2, 1], starts=[2, 4], tables=tables, block_size=4)

    assert metadata.kv_indices.tolist() == [5, 8, 9]
    assert metadata.kv_last_page_len.tolist() == [4, 1]


def test_a_table_that_is_too_short_is_refused_with_the_numbers() -> None:
    tables = [pack_ids([1]), pack_ids([2, 3])]
    with pytest.raises(InvariantError, match="request 1 needs 3 blocks, its table has 2"):
        build_metadata(qo_lens=[1, 1], starts=[0, 8], tables=tables, block_size=4)


@pytest.mark.parametrize(("qo_lens", "starts"), [([0], [3]), ([2], [-1])])
def test_a_request_that_computes_no_token_of_its_own_is_refused(
    qo_lens: list[int], starts: list[int]
) -> None:
    with pytest.raises(InvariantError, match="computes no token"):
        build_metadata(qo_lens=qo_lens, starts=starts, tables=[pack_ids([1])], block_size=4)


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(InvariantError, match="computes no token"):
        build_metadata(qo_lens=[], starts=[], tables=[], block_size=4)


@pytest.mark.parametrize(("starts", "num_tables"), [([0], 2), ([0, 0], 1)])
def test_lists_of_unequal_length_are_refused(starts: list[int], num_tables: int) -> None:
    tables = [pack_ids([1])] * num_tables
    with pytest.raises(InvariantError, match="one of each a request"):
        build_metadata(qo_lens=[1, 1], starts=starts, tables=tables, block_size=4)
