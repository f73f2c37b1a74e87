"""`LayerKV`: one layer's share of the KV pool, and how it may lie in memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

KVLayout = Literal["rows", "columns"]
"""rows: a token's heads side by side, [block, token, head, d] as they are written down.
columns: a block's heads one after the other, V as [block, head, token, d] and K as
[block, head, d, token], so that one load takes many tokens, as scores need them."""

TOKENS_A_LOAD = 16
"""K lies with its tokens innermost where a block is so many, or a multiple; else as V does."""

CACHE_LINE = 64
"""Bytes that memory is read in."""

LARGEST_CODE = 127
"""Of the whole numbers that int8 KV is made of; the smallest is as far below zero."""


@dataclass(frozen=True, slots=True, eq=False)
class LayerKV:
    """One layer's share of the KV pool.

    In every layout a block is one run of memory, of K, of V and of each one's scales.
    """

    k: Tensor
    """[num_blocks, block_size, num_kv_heads, head_dim], of any strides."""
    v: Tensor
    """[num_blocks, block_size, num_kv_heads, head_dim], of any strides."""
    k_scale: Tensor | None = None
    """[num_blocks, block_size, num_kv_heads], float32: what a token's int8 numbers are to be
    multiplied by; None for other dtypes."""
    v_scale: Tensor | None = None
    """As k_scale, of V."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All that there is of each token, [num_blocks, block_size, num_kv_heads, ...]."""
        if self.k_scale is None or self.v_scale is None:
            return (self.k, self.v)
        return (self.k, self.v, self.k_scale, self.v_scale)

    @property
    def blocks(self) -> tuple[Tensor, ...]:
        """The same memory a row a block, [num_blocks, elements], as it lies."""
        return tuple(_as_rows(tensor) for tensor in self.tensors)


def allocate_layers(
    num_layers: int, shape: Sequence[int], dtype: torch.dtype, layout: KVLayout = "rows"
) -> list[LayerKV]:
    """Return K and V of each layer, all zeros, in host memory that is taken as it is written.

    Args:
        num_layers: Layers.
        shape: [num_blocks, block_size, num_kv_heads, head_dim] of each.
        dtype: Of K and V; int8 comes with scales.
        layout: How they lie.
    Raises:
        MemoryError: the system does not give it.
    """
    v_order = (0, 1, 2, 3) if layout == "rows" else (0, 2, 1, 3)
    has_columns = layout == "columns" and shape[1] % TOKENS_A_LOAD == 0
    k_order = (0, 2, 3, 1) if has_columns else v_order

    def scale() -> torch.Tensor | None:
        return _lazy_zeros(shape[:3], torch.float32, (0, 2, 1)) if dtype == torch.int8 else None

    return [
        LayerKV(
            _lazy_zeros(shape, dtype, k_order), _lazy_zeros(shape, dtype, v_order), scale(), scale()
        )
        for _ in range(num_layers)
    ]


def quantize(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return a token's heads as whole numbers and one scale each: number * scale is the value.

    The scale is the largest magnitude / 127, and numbers are rounded to the nearest, ties to even.
    Where a value is not finite the scale is NaN, so that whoever attends to it finds out.

    Args:
        rows: [..., head_dim].
    Returns:
        int8 of rows' shape, and float32 [...].
    """
    rows = rows.float()
    scale = rows.abs().amax(dim=-1) / LARGEST_CODE
    scale = torch.where(scale.isfinite(), scale, torch.nan)
    codes = (rows / scale[..., None]).round().clamp(-LARGEST_CODE, LARGEST_CODE)
    codes = torch.where(scale[..., None] > 0, codes, 0.0)
    return codes.to(torch.int8), scale


def _lazy_zeros(shape: Sequence[int], dtype: torch.dtype, order: Sequence[int]) -> torch.Tensor:
    """Return zeros whose pages are not touched yet, in huge pages where the system gives them.

    numpy takes large zeroed arrays straight from the system; torch would write every page. They
    begin with a cache line, so that a token's head does not lie in one line more than it fills.

    Args:
        shape: Of the result.
        dtype: Of the result.
        order: Its dimensions as they lie in memory, the innermost last.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    memory = np.zeros(num_bytes + CACHE_LINE, dtype=np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    dense = torch.from_numpy(memory[start : start + num_bytes]).view(dtype)
    places = [order.index(dim) for dim in range(len(order))]
    return dense.view([shape[dim] for dim in order]).permute(places)


def _as_rows(tensor: Tensor) -> Tensor:
    """Return [num_blocks, elements] over a tensor of which each block is one run of memory."""
    num_elements = math.prod(tensor.shape[1:])
    return tensor.as_strided((len(tensor), num_elements), (num_elements, 1))
