"""`PagedRows`: the K, or the V, of one layer as rows of one token each, whatever the layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from radixserve.attention.layer_kv import quantize

if TYPE_CHECKING:
    from torch import Tensor


class PagedRows:
    """Reads and writes a pool by slot, in plain torch.

    Args:
        pool: [num_blocks, block_size, num_kv_heads, head_dim], of any strides.
        scale: [num_blocks, block_size, num_kv_heads], for int8.
    """

    def __init__(self, pool: Tensor, scale: Tensor | None) -> None:
        self._pool = pool
        self._scale = scale
        self.block_size = pool.shape[1]
        # Where a token's heads are one run of memory there are quicker ways than by two indices.
        is_flat = scale is None and pool.is_contiguous()
        self._flat = pool.view(-1, pool.shape[2] * pool.shape[3]) if is_flat else None

    @property
    def dtype(self) -> torch.dtype:
        """Of the numbers that `gather` gives."""
        return self._pool.dtype if self._scale is None else torch.float32

    def write(self, slots: Tensor, rows: Tensor) -> None:
        """Write [num_tokens, num_kv_heads, head_dim] to their slots.

        Mutates: those slots.
        """
        if self._flat is not None:
            self._flat.index_copy_(0, slots, rows.reshape(len(slots), -1).to(self.dtype))
            return
        place = self._place(slots)
        if self._scale is None:
            self._pool[place] = rows.to(self.dtype)
        else:
            self._pool[place], self._scale[place] = quantize(rows)

    def gather(self, slots: Tensor, out: Tensor) -> None:
        """Copy slots to `out`, [num_tokens, num_kv_heads * head_dim].

        Mutates: `out`.
        """
        if self._flat is not None:
            torch.index_select(self._flat, 0, slots, out=out)
            return
        place = self._place(slots)
        rows = self._pool[place]
        if self._scale is not None:
            rows = rows * self._scale[place][..., None]
        out.copy_(rows.reshape(out.shape))

    def blocks(self, ids: Tensor) -> Tensor:
        """Return whole blocks, token after token: [tokens, num_kv_heads, head_dim]."""
        ids = ids.to(self._pool.device)
        rows = self._pool[ids]
        if self._scale is not None:
            rows = rows * self._scale[ids][..., None]
        return rows.flatten(0, 1)

    def _place(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        return slots // self.block_size, slots % self.block_size
