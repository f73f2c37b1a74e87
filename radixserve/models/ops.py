"""A layer's small operations: all that lies between its matrix products and its attention.

    share ─► add_norm ─► product ─► norm_heads_, rotate_ ─► attention ─► product ─► share
    share ─► add_norm ─► product ─► silu_mul ─────────────────────────► product ─► share

A sub-layer's share is added to the residual stream together with the norm that follows, whosesoever
it is, so that one kernel can do both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch.nn.functional as F

from radixserve.models.rotary import rotate_

if TYPE_CHECKING:
    from torch import Tensor

    from radixserve.models.rotary import RotaryTable


class Rotation(Protocol):
    """The angles of one batch's rows, for every layer."""

    def rotate_(self, heads: Tensor, num_qo_heads: int) -> None:
        """Rotate each head by its row's angles; the products are taken in float32.

        Args:
            heads: [T, num_qo_heads + num_kv_heads, head_dim], dense in a row: those of q, then
                those of k.
            num_qo_heads: How many are q's.
        Mutates: `heads`.
        """
        ...


class LayerOps(Protocol):
    """Computes a layer's small operations; what is summed is summed in float32.

    All of it may be captured in a CUDA graph: nothing waits for the device.
    """

    def rotation(self, table: RotaryTable, positions: Tensor) -> Rotation:
        """Return the angles of a batch.

        Args:
            table: On the rows' device.
            positions: [T], int64, each below the table's max_position.
        """
        ...

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Return the rows of x [T, size] at unit root mean square, times `weight` [size]."""
        ...

    def add_norm(self, share: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Add a share to the residual stream, and return the norm of the sum.

        Args:
            share: [T, size], dense, the caller's own: it may hold the result afterwards.
            residual: [T, size], dense.
            weight: [size].
            eps: Added to the mean square.
        Mutates: `residual`, and `share`, which is lost.
        """
        ...

    def norm_heads_(self, heads: Tensor, weight: Tensor, eps: float) -> None:
        """Replace each head of [T, num_heads, head_dim] by its norm.

        Mutates: `heads`, which is dense in a row.
        """
        ...

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """Return silu(gate) * up, [T, size], for gate and up side by side in [T, 2 * size]."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class _PlainRotation:
    cos: Tensor
    """[T, 1, head_dim], float32"""
    signed_sin: Tensor
    """[T, 1, head_dim], float32"""

    def rotate_(self, heads: Tensor, num_qo_heads: int) -> None:
        rotate_(heads, self.cos, self.signed_sin)


class PlainOps:
    """`LayerOps` in plain torch, for any dtype and device: what the others are held against."""

    def rotation(self, table: RotaryTable, positions: Tensor) -> Rotation:
        """Look the angles up, once for all layers."""
        return _PlainRotation(*table(positions))

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Return the norm of x's rows, in its own dtype."""
        return F.rms_norm(x, weight.shape, weight, eps)

    def add_norm(self, share: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Add, round to the residual's dtype, and return the norm of that; `share` is kept."""
        return self.norm(residual.add_(share), weight, eps)

    def norm_heads_(self, heads: Tensor, weight: Tensor, eps: float) -> None:
        """Replace each head by its norm."""
        heads.copy_(self.norm(heads, weight, eps))

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """Return the product of silu(gate), rounded to its dtype, and up."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)


PLAIN_OPS: LayerOps = PlainOps()
