"""What FlashInfer's own references compute on a CPU, against what ours says they mean."""

from __future__ import annotations

import pytest
import torch

from radixserve.attention.flashinfer_args import level_args, prefill_args
from radixserve.attention.level_wise import attend_level
from radixserve.attention.levels import find_levels
from radixserve.attention.merge import Partial, merge
from radixserve.attention.metadata import CascadeLevel
from radixserve.attention.paged_rows import PagedRows
from radixserve.config import CascadeConfig
from tests.attention.trees import Batch

flashinfer = pytest.importorskip("flashinfer", reason="the package flashinfer is not installed")
attention = pytest.importorskip("flashinfer.trace.templates.attention")
cascade = pytest.importorskip("flashinfer.trace.templates.cascade")

ONE_TOKEN_PAGES = Batch([[3, 1, 4], [3, 1, 5, 9]], starts=[2, 1], qo_lens=[1, 3], block_size=1)
FULL_PAGES = Batch([[3, 1, 4], [3, 1, 5, 2]], starts=[47, 60], qo_lens=[1, 4], block_size=16)


@pytest.mark.parametrize("batch", [ONE_TOKEN_PAGES, FULL_PAGES], ids=["pages of 1", "pages of 16"])
def test_attention_and_log_sum_exp_are_those_of_flashinfers_reference(batch: Batch) -> None:
    """Its reference takes every page for full."""
    shape = (10, batch.block_size, 2, 64)
    k, v = torch.randn(shape), torch.randn(shape)
    args = prefill_args(batch.metadata)
    q = torch.randn(args.num_rows, 6, 64)

    theirs, lse = attention._gqa_paged_prefill_reference(
        q, k, v, args.qo_indptr, args.kv_indptr, args.kv_indices, 0.1
    )

    level = CascadeLevel(args.qo_indptr, args.kv_indptr, args.kv_indices, args.last_page_len)
    pools = (PagedRows(k, None), PagedRows(v, None))
    ours = attend_level(q, *pools, level, scale=0.1, causal=args.causal)
    torch.testing.assert_close(ours.lse, lse, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.out, theirs.float(), rtol=1e-2, atol=1e-2)  # it gives bfloat16


def test_a_merge_is_that_of_flashinfers_reference() -> None:
    a, b = (Partial(torch.randn(5, 4, 64), torch.randn(5, 4) * 8) for _ in range(2))

    out, lse = cascade._merge_state_reference(a.out, a.lse, b.out, b.lse)

    torch.testing.assert_close(merge(a, b).out, out, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(merge(a, b).lse, lse, rtol=1e-5, atol=1e-5)


def test_flashinfer_derives_the_lengths_that_are_meant() -> None:
    batch = Batch([[1, 2, 3], [1, 2, 4, 5], [6]], [9, 13, 0], [1, 2, 2], block_size=4)
    metadata = batch.metadata
    levels = level_args(find_levels(metadata, CascadeConfig(min_sharers=2, min_shared_tokens=1)))

    def lengths(indptr: torch.Tensor, last_page_len: torch.Tensor) -> list[int]:
        told: list[int] = flashinfer.get_seq_lens(indptr, last_page_len, 4).tolist()
        return told

    flat = prefill_args(metadata)
    assert lengths(flat.kv_indptr, flat.last_page_len) == metadata.kv_lens.tolist() == [10, 15, 2]
    told = [lengths(level.kv_indptr, level.last_page_len) for level in levels]
    assert told == [[8, 0], [2, 7, 2]]
