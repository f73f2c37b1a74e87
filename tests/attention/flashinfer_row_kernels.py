"""FlashInfer's kernels over rows, in plain torch: its names, its defaults, its rounding.

They refuse what the kernels do not check, and would get wrong in silence.
Source: flashinfer 0.7.2.post1, norm.cuh, pos_enc.cuh, activation.cuh, csrc/norm.cu, csrc/rope.cu,
jit/activation.py.
"""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

DTYPES = (torch.float16, torch.bfloat16)
VECTOR_BYTES = 16
ROPE_HEAD_DIMS = (64, 128, 256, 512)


def rmsnorm(
    input: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    out: Tensor | None = None,
    enable_pdl: bool | None = None,
) -> Tensor:
    """Read a row, sum its squares in float32, write it."""
    out = torch.empty_like(input) if out is None else out
    assert input.dim() in (2, 3)
    assert out.shape == input.shape
    for rows in (input, out):
        _check_rows(rows, weight)
    return out.copy_(_normed(input.float(), weight, eps))


def fused_add_rmsnorm(
    input: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    enable_pdl: bool | None = None,
) -> None:
    """The sum is rounded on its way to `residual` alone; `input` gets the norm of the exact one."""
    assert input.dim() == 2
    assert residual.shape == input.shape
    assert input is not residual
    for rows in (input, residual):
        _check_rows(rows, weight)
    exact = input.float() + residual.float()
    residual.copy_(exact)
    input.copy_(_normed(exact, weight, eps))


def silu_and_mul(
    input: Tensor, out: Tensor | None = None, enable_pdl: bool | None = None
) -> Tensor:
    """Both factors stay in float32 until they are multiplied."""
    assert input.dtype in DTYPES
    assert input.is_contiguous(), "the kernel knows no strides"
    assert out is None
    gate, up = input.float().chunk(2, dim=-1)
    return (gate / (1 + (-gate).exp()) * up).to(input.dtype)


def apply_rope_with_cos_sin_cache_inplace(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    head_size: int,
    cos_sin_cache: Tensor,
    is_neox: bool = True,
) -> None:
    """The halves of a head are rotated in float32, and rounded once."""
    assert is_neox, "the halves of a head are meant, not its neighbours"
    assert head_size in ROPE_HEAD_DIMS
    assert cos_sin_cache.dtype == torch.float32
    assert cos_sin_cache.is_contiguous()
    assert cos_sin_cache.shape[1] == head_size
    assert positions.dtype in (torch.int32, torch.int64)
    assert positions.is_contiguous()
    assert positions.shape == (len(query),) == (len(key),)
    if not positions.is_meta:
        assert int(positions.max()) < len(cos_sin_cache), "read beyond the table"
    cos, sin = cos_sin_cache[positions.long()].unsqueeze(1).chunk(2, dim=-1)
    for rows in (query, key):
        assert rows.dtype == query.dtype
        assert rows.dtype in DTYPES
        assert rows.device == positions.device == cos_sin_cache.device
        heads = rows.view(len(rows), -1, head_size)
        _check_vectors(heads, head_size)
        first, second = heads.float().chunk(2, dim=-1)
        heads.copy_(torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1))


def _normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + eps) * weight.float()


def _check_rows(rows: Tensor, weight: Tensor) -> None:
    assert rows.dtype in DTYPES
    assert weight.dtype == rows.dtype, "the kernel reads the weight as what the rows are"
    assert weight.device == rows.device
    assert weight.shape == (rows.shape[-1],)
    assert weight.is_contiguous()
    _check_vectors(rows, rows.shape[-1])


def _check_vectors(rows: Tensor, size: int) -> None:
    """Assert that each row can be read and written in the longest vectors that divide it."""
    assert rows.stride(-1) == 1
    vector = gcd(VECTOR_BYTES // rows.itemsize, size)
    assert rows.storage_offset() % vector == 0
    assert all(stride % vector == 0 for stride in rows.stride()[:-1])
