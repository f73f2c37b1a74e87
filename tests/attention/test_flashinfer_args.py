from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.attention.build import build_metadata
from radixserve.attention.flashinfer_args import (
    KernelShape,
    append_args,
    decode_args,
    is_pure_decode,
    level_args,
    pad_decode,
    prefill_args,
    workspace_bytes,
)
from radixserve.attention.levels import find_levels
from radixserve.config import CascadeConfig
from radixserve.errors import BackendUnavailableError, InvariantError
from radixserve.types import pack_ids
from tests.attention.trees import Batch, batches

LLAMA = KernelShape(
    num_qo_heads=32,
    num_kv_heads=8,
    head_dim=128,
    block_size=16,
    num_blocks=1000,
    q_dtype=torch.bfloat16,
    kv_dtype=torch.bfloat16,
)


def test_a_mixed_batch_is_one_causal_prefill() -> None:
    metadata = build_metadata(
        qo_lens=[3, 1],
        starts=[6, 4],
        tables=[pack_ids([2, 9, 4]), pack_ids([8, 1])],
        block_size=4,
    )

    args = prefill_args(metadata)

    assert args.qo_indptr.tolist() == [0, 3, 4]
    assert args.kv_indptr.tolist() == [0, 3, 5]
    assert args.kv_indices.tolist() == [2, 9, 4, 8, 1]
    assert args.last_page_len.tolist() == [1, 1]
    assert args.causal
    assert args.num_rows == 4
    assert not is_pure_decode(metadata)
    with pytest.raises(InvariantError, match="not 4 tokens of 2 requests"):
        decode_args(metadata)


def test_a_row_is_appended_at_its_position_of_its_request() -> None:
    metadata = build_metadata(
        qo_lens=[3, 1], starts=[6, 4], tables=[pack_ids([2, 9, 4]), pack_ids([8, 1])], block_size=4
    )

    args = append_args(metadata)

    assert args.batch_indices.tolist() == [0, 0, 0, 1]
    assert args.positions.tolist() == [6, 7, 8, 4]
    assert args.batch_indices.dtype == args.positions.dtype == torch.int32


def test_only_the_private_level_is_causal() -> None:
    batch = Batch([[1, 2, 3], [1, 2, 4]], starts=[8, 8], qo_lens=[1, 2], block_size=4)
    levels = find_levels(batch.metadata, CascadeConfig(min_sharers=2, min_shared_tokens=1))

    shared, private = level_args(levels)

    assert (shared.causal, private.causal) == (False, True)
    assert (shared.num_rows, private.num_rows) == (3, 3)
    assert shared.kv_indices.tolist() == [1, 2]
    assert private.kv_indices.tolist() == [3, 4]


@settings(max_examples=40, deadline=None)
@given(batches(), st.booleans())
def test_planned_lengths_are_those_of_the_batch_at_every_page_size(
    batch: Batch, is_by_levels: bool
) -> None:
    """FlashInfer derives lengths: (pages - 1) * page_size + last_page_len, or 0."""
    metadata = batch.metadata
    gate = CascadeConfig(min_sharers=2, min_shared_tokens=1)
    levels = find_levels(metadata, gate) if is_by_levels else ()
    kv_lens = torch.zeros_like(metadata.kv_lens)
    for args in level_args(levels) or (prefill_args(metadata),):
        pages = args.kv_indptr.diff()
        lens = (pages - 1).clamp(min=0) * batch.block_size + args.last_page_len
        assert bool(((pages == 0) == (args.last_page_len == 0)).all())
        assert bool((args.last_page_len <= batch.block_size).all())
        segment_of_row = torch.repeat_interleave(args.qo_indptr.diff())
        kv_lens += lens[segment_of_row[metadata.qo_indptr[:-1].long()]]
        for name in ("qo_indptr", "kv_indptr", "kv_indices", "last_page_len"):
            tensor = getattr(args, name)
            assert tensor.dtype == torch.int32
            assert tensor.device.type == "cpu"
            assert tensor.is_contiguous()

    assert torch.equal(kv_lens, metadata.kv_lens)


@pytest.mark.parametrize("bucket", [2, 3, 8])
def test_padding_adds_rows_of_length_one_on_the_dummy_block(bucket: int) -> None:
    batch = Batch([[1, 2], [3]], starts=[5, 0], qo_lens=[1, 1], block_size=4)

    padded = pad_decode(batch.metadata, bucket, dummy_block=9)

    extra = bucket - 2
    assert (padded.num_reqs, padded.num_tokens) == (bucket, bucket)
    assert padded.qo_indptr.tolist() == list(range(bucket + 1))
    assert padded.kv_lens.tolist() == [6, 1] + [1] * extra
    assert padded.kv_indptr.tolist() == [0, 2, 3] + [4 + i for i in range(extra)]
    assert padded.kv_indices.tolist() == [1, 2, 3] + [9] * extra
    assert padded.kv_last_page_len.tolist() == [2, 1] + [1] * extra
    assert padded.slot_mapping.tolist() == [9, 12] + [36] * extra
    assert padded.positions.tolist() == [5, 0] + [0] * extra
    for name in ("qo_indptr", "kv_indptr", "kv_indices", "kv_last_page_len", "kv_lens"):
        assert getattr(padded, name).dtype == torch.int32, name
    for name in ("slot_mapping", "positions"):
        assert getattr(padded, name).dtype == torch.int64, name


def test_padding_drops_the_levels() -> None:
    batch = Batch([[1, 2], [1, 3]], starts=[4, 4], qo_lens=[1, 1], block_size=4)
    metadata = batch.metadata
    levels = find_levels(metadata, CascadeConfig(min_sharers=2, min_shared_tokens=1))
    assert levels

    assert pad_decode(replace(metadata, levels=levels), 2, dummy_block=9).levels == ()


def test_padding_refuses_what_is_no_decode_or_does_not_fit() -> None:
    decodes = Batch([[1], [3]], starts=[1, 0], qo_lens=[1, 1], block_size=4).metadata
    prefill = Batch([[1]], starts=[0], qo_lens=[2], block_size=4).metadata

    with pytest.raises(InvariantError, match="2 requests do not fit into a bucket of 1"):
        pad_decode(decodes, 1, dummy_block=9)
    with pytest.raises(InvariantError, match="one token a request"):
        pad_decode(prefill, 4, dummy_block=9)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"head_dim": 96}, "head_dim 64, 128 and 256, not 96"),
        ({"head_dim": 32}, "head_dim 64, 128 and 256, not 32"),
        ({"num_qo_heads": 30}, "30 query heads over 8 KV heads"),
        ({"q_dtype": torch.float32}, "float16 or bfloat16, not float32"),
        ({"kv_dtype": torch.float16}, "not float16 under bfloat16"),
        ({"kv_dtype": torch.int8}, "not int8 under bfloat16"),
        ({"num_blocks": 2**27}, "32 bits, and a pool of 2147483648"),
        ({"block_size": 2**22, "num_blocks": 1}, "blocks of 4194304 tokens"),
    ],
)
def test_what_the_kernels_cannot_take_is_refused_with_reason_and_alternative(
    changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(BackendUnavailableError, match=reason) as caught:
        replace(LLAMA, **changes)

    assert "--attention-backend cpu, or another model" in str(caught.value)


@pytest.mark.parametrize("kv_dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("q_dtype", [torch.float16, torch.bfloat16])
def test_eight_bit_kv_is_read_under_either_dtype(
    q_dtype: torch.dtype, kv_dtype: torch.dtype
) -> None:
    assert replace(LLAMA, q_dtype=q_dtype, kv_dtype=kv_dtype).is_fp8


@pytest.mark.parametrize("num_qo_heads", [8, 24, 56, 64, 128])
def test_any_group_size_is_taken(num_qo_heads: int) -> None:
    assert replace(LLAMA, num_qo_heads=num_qo_heads).group_size == num_qo_heads // 8


@pytest.mark.parametrize(
    ("num_qo_heads", "head_dim", "can_merge"),
    [(64, 128, True), (72, 128, False), (128, 64, True), (32, 256, True), (40, 256, False)],
)
def test_more_heads_than_a_thread_block_holds_cannot_merge(
    num_qo_heads: int, head_dim: int, can_merge: bool
) -> None:
    shape = replace(LLAMA, num_qo_heads=num_qo_heads, head_dim=head_dim)

    assert shape.can_merge == can_merge


def test_the_workspace_of_an_8b_model_is_what_the_planner_would_ask_for() -> None:
    """Of 132 SMs, 33 thread blocks a KV head, each a tile of 128 rows by 4 heads."""
    rows = 33 * 128 // 4

    assert workspace_bytes(LLAMA, num_sms=132, max_bucket=0) == 32 * rows * 129 * 4 + 32


def test_the_workspace_grows_with_the_largest_bucket() -> None:
    sizes = [workspace_bytes(LLAMA, num_sms=132, max_bucket=n) for n in (0, 8, 64, 256)]

    assert sizes == sorted(sizes)
    tiles = 256 * 4 // 64 + 255
    assert sizes[-1] == 32 * (tiles * 64 // 4) * 129 * 4 + 32
