"""What FlashInfer's own references compute on a CPU, against what ours says they mean."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from radixserve.attention.flashinfer_args import level_args, prefill_args
from radixserve.attention.level_wise import attend_level
from radixserve.attention.levels import find_levels
from radixserve.attention.merge import Partial, merge
from radixserve.attention.metadata import CascadeLevel
from radixserve.attention.paged_rows import PagedRows
from radixserve.config import CascadeConfig
from tests.attention import flashinfer_row_kernels as row_kernels
from tests.attention.trees import Batch

flashinfer = pytest.importorskip("flashinfer", reason="the package flashinfer is not installed")
attention = pytest.importorskip("flashinfer.trace.templates.attention")
cascade = pytest.importorskip("flashinfer.trace.templates.cascade")
norm = pytest.importorskip("flashinfer.trace.templates.norm")
rope = pytest.importorskip("flashinfer.trace.templates.rope")
activation = pytest.importorskip("flashinfer.trace.templates.activation")

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


# -- the stand-in for the kernels over rows ----------------------------------------------------

EPS = 1e-6
"""The references' own."""
DTYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])


@DTYPES
@pytest.mark.parametrize("shape", [(5, 512), (5, 3, 64)], ids=["rows", "heads"])
def test_a_norm_is_that_of_flashinfers_reference(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    x, weight = torch.randn(shape).to(dtype), torch.randn(shape[-1]).to(dtype)

    assert torch.equal(row_kernels.rmsnorm(x, weight, EPS), norm._rmsnorm_reference(x, weight))
    row_kernels.rmsnorm(heads := x.clone(), weight, EPS, out=heads)
    assert torch.equal(heads, norm._rmsnorm_reference(x, weight))


@DTYPES
def test_the_norm_of_a_sum_is_that_of_flashinfers_reference(dtype: torch.dtype) -> None:
    share, residual = (torch.randn(5, 512).to(dtype) for _ in range(2))
    weight = torch.randn(512).to(dtype)
    expected = norm._fused_add_rmsnorm_reference(share, residual, weight)
    total = share + residual

    row_kernels.fused_add_rmsnorm(share, residual, weight, EPS)

    assert torch.equal(share, expected)
    assert torch.equal(residual, total)


def test_a_gate_is_that_of_flashinfers_reference() -> None:
    """Its reference rounds silu(gate), which the kernel does not; float32 has nothing to round."""
    gate_up = torch.randn(5, 512)
    exact = activation._silu_and_mul_reference(gate_up.bfloat16().float())

    ours = row_kernels.silu_and_mul(gate_up.bfloat16())

    torch.testing.assert_close(ours.float(), exact, rtol=2**-8, atol=1e-6)


@DTYPES
def test_a_rotation_is_that_of_flashinfers_reference(dtype: torch.dtype) -> None:
    """q and k are views of one buffer, as they are in a layer."""
    heads = torch.randn(5, 6, 64).to(dtype)
    q, k = heads[:, :4].view(5, -1), heads[:, 4:].view(5, -1)
    table, positions = torch.randn(30, 64), torch.tensor([0, 29, 3, 3, 11])
    expected = rope._apply_rope_with_cos_sin_cache_reference(positions, q, k, 64, table, True)

    row_kernels.apply_rope_with_cos_sin_cache_inplace(positions, q, k, 64, table)

    assert torch.equal(q, expected[0])
    assert torch.equal(k, expected[1])


def test_the_norms_that_run_are_those_that_can_be_built_before() -> None:
    """`load_package` asks for them in a variable, of which this is what the package makes."""
    code = "import flashinfer.norm; print(flashinfer.norm._USE_CUDA_NORM)"
    environment = {**os.environ, "FLASHINFER_USE_CUDA_NORM": "1"}

    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )

    assert done.stdout.split() == ["True"], done.stderr
