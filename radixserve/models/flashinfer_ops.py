"""`FlashInferOps`: a layer's small operations by FlashInfer's kernels, one kernel each.

    add_norm     fused_add_rmsnorm                       2 of torch's
    norm_heads_  rmsnorm, in place                       2
    rotate_      apply_rope_with_cos_sin_cache_inplace   about 5
    silu_mul     silu_and_mul                            2

Each computes in float32 and rounds once, at its end; plain torch rounds the sum before its norm,
and silu(gate) before the product.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from torch import Tensor

    from radixserve.models.ops import Rotation
    from radixserve.models.rotary import RotaryTable


@dataclass(frozen=True, slots=True, eq=False)
class _FlashInferRotation:
    package: Any
    cos_sin: Tensor
    """[max_position, head_dim], float32: cos, then sin."""
    positions: Tensor
    """[T], int64"""

    def rotate_(self, heads: Tensor, num_qo_heads: int) -> None:
        rows, _, head_dim = heads.shape
        q, k = heads[:, :num_qo_heads], heads[:, num_qo_heads:]
        self.package.apply_rope_with_cos_sin_cache_inplace(
            self.positions,
            q.view(rows, -1),  # never a copy: they are rotated where they lie
            k.view(rows, -1),
            head_dim,
            self.cos_sin,
            is_neox=True,
        )


class FlashInferOps:
    """`LayerOps` out of the package, for float16 and bfloat16 on a CUDA device.

    The head sizes are those of the package's attention. Which kernel runs, and with which launch
    attributes, is decided from shapes and from what the package keeps of the device. What is
    compiled or loaded at the first call of a shape is, therefore, before a capture, which warms
    up with its own shapes.

    Args:
        package: The imported `flashinfer`.
    """

    def __init__(self, package: Any) -> None:
        self._package = package

    def rotation(self, table: RotaryTable, positions: Tensor) -> Rotation:
        """Return what rotates by looking each angle up in the kernel."""
        return _FlashInferRotation(self._package, table.cos_sin, positions)

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Return the norm of x's rows."""
        return cast("Tensor", self._package.rmsnorm(x, weight, eps))

    def add_norm(self, share: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Add, and return `share`, which then holds the norm of the sum before it was rounded."""
        self._package.fused_add_rmsnorm(share, residual, weight, eps)
        return share

    def norm_heads_(self, heads: Tensor, weight: Tensor, eps: float) -> None:
        """Replace each head by its norm, where it lies."""
        self._package.rmsnorm(heads, weight, eps, out=heads)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """Return silu(gate) * up, rounded once."""
        return cast("Tensor", self._package.silu_and_mul(gate_up))
