"""`LayerKV`: one layer's share of the KV pool, and how it may lie in memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
        """All that there is of each token, [num_blocks, block_size, num_kv_heads, ...], to be
        copied: 8-bit floats are told as bytes."""
        halves = (_movable(self.k), _movable(self.v))
        if self.k_scale is None or self.v_scale is None:
            return halves
        return (*halves, self.k_scale, self.v_scale)

    @property
    def blocks(self) -> tuple[Tensor, ...]:
        """The same memory a row a block, [num_blocks, elements], as it lies."""
        return tuple(_as_rows(tensor) for tensor in self.tensors)


def allocate_layers(
    num_layers: int,
    shape: Sequence[int],
    dtype: torch.dtype,
    layout: KVLayout = "rows",
    *,
    make_zeros: Callable[[int], Tensor] | None = None,
) -> list[LayerKV]:
    """Return K and V of each layer, all zeros.

    Args:
        num_layers: Layers.
        shape: [num_blocks, block_size, num_kv_heads, head_dim] of each.
        dtype: Of K and V; int8 comes with scales.
        layout: How they lie.
        make_zeros: Returns so many bytes of 0; when None, of host memory that is taken as it is
            written.
    Raises:
        MemoryError: the system does not give it.
        OutOfMemoryError: the device does not.
    """
    make = _lazy_zeros if make_zeros is None else make_zeros
    v_order = (0, 1, 2, 3) if layout == "rows" else (0, 2, 1, 3)
    has_columns = layout == "columns" and shape[1] % TOKENS_A_LOAD == 0
    k_order = (0, 2, 3, 1) if has_columns else v_order

    def half(order: Sequence[int]) -> Tensor:
        return _arranged(make(math.prod(shape) * dtype.itemsize).view(dtype), shape, order)

    def scale() -> Tensor | None:
        if dtype != torch.int8:
            return None
        memory = make(math.prod(shape[:3]) * torch.float32.itemsize)
        return _arranged(memory.view(torch.float32), shape[:3], (0, 2, 1))

    return [LayerKV(half(k_order), half(v_order), scale(), scale()) for _ in range(num_layers)]


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


def _lazy_zeros(num_bytes: int) -> Tensor:
    """Return zeros whose pages are not touched yet, in huge pages where the system gives them.

    numpy takes large zeroed arrays straight from the system; torch would write every page. They
    begin with a cache line, so that a token's head does not lie in one line more than it fills.
    """
    memory = np.zeros(num_bytes + CACHE_LINE, dtype=np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return torch.from_numpy(memory[start : start + num_bytes])


def _arranged(memory: Tensor, shape: Sequence[int], order: Sequence[int]) -> Tensor:
    """Return dense memory as a tensor of `shape`.

    Args:
        memory: [elements].
        shape: Of the result.
        order: Its dimensions as they lie in memory, the innermost last.
    """
    places = [order.index(dim) for dim in range(len(order))]
    return memory.view([shape[dim] for dim in order]).permute(places)


def _as_rows(tensor: Tensor) -> Tensor:
    """Return [num_blocks, elements] over a tensor of which each block is one run of memory."""
    num_elements = math.prod(tensor.shape[1:])
    return tensor.as_strided((len(tensor), num_elements), (num_elements, 1))


def _movable(tensor: Tensor) -> Tensor:
    """Return a view that torch can select from: of 8-bit floats it cannot."""
    is_float8 = tensor.dtype.is_floating_point and tensor.dtype.itemsize == 1
    return tensor.view(torch.uint8) if is_float8 else tensor
