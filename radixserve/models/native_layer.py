"""One decoder layer as a few operations of a program, over buffers that all layers share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch

from radixserve.kernels import PackedLinear, View

if TYPE_CHECKING:
    from torch import Tensor

    from radixserve.attention.cpu import CpuAttention
    from radixserve.kernels import Program
    from radixserve.kernels.packed_linear import WeightDType
    from radixserve.models.config import ModelSpec
    from radixserve.models.layers import DecoderLayer, FusedLinear

Keep: TypeAlias = Literal["lossless", "int8"]
"""lossless: as bfloat16 where that changes no weight, else as float32."""


@dataclass(frozen=True, slots=True, eq=False)
class Buffers:
    """What a forward pass writes between its operations; float32, one row a token."""

    x: Tensor
    """[capacity, hidden_size]: the residual stream."""
    normed: Tensor
    """[capacity, hidden_size]"""
    heads: Tensor
    """[capacity, num_qo_heads + 2 * num_kv_heads, head_dim]: q, k and v."""
    attended: Tensor
    """[capacity, num_qo_heads, head_dim]"""
    inner: Tensor
    """[capacity, intermediate_size]"""

    @classmethod
    def allocate(cls, spec: ModelSpec, capacity: int) -> Buffers:
        """Return buffers for batches of up to `capacity` rows."""
        num_heads = spec.num_qo_heads + 2 * spec.num_kv_heads
        return cls(
            x=torch.empty(capacity, spec.hidden_size),
            normed=torch.empty(capacity, spec.hidden_size),
            heads=torch.empty(capacity, num_heads, spec.head_dim),
            attended=torch.empty(capacity, spec.num_qo_heads, spec.head_dim),
            inner=torch.empty(capacity, spec.intermediate_size),
        )


class NativeLayer:
    """The packed weights of a layer.

    Args:
        layer: Gives its weights up.
        spec: The model's shape.
        keep: How small the weights are kept.
    Mutates: `layer`, which cannot be run afterwards.
    """

    def __init__(self, layer: DecoderLayer, spec: ModelSpec, keep: Keep) -> None:
        self._spec = spec
        self._input_norm = layer.input_norm.weight
        self._mlp_norm = layer.mlp_norm.weight
        self._qk_norms = (layer.attention.q_norm, layer.attention.k_norm)
        self._qkv = _take(layer.attention.qkv, keep)
        self._output = _take(layer.attention.output, keep)
        self._gate_up = _take(layer.mlp.gate_up, keep)
        self._down = _take(layer.mlp.down, keep)

    @property
    def packed(self) -> tuple[PackedLinear, ...]:
        """All its packed weights."""
        return self._qkv, self._output, self._gate_up, self._down

    def record(
        self,
        program: Program,
        buffers: Buffers,
        places: tuple[View, View, View],
        slots: View,
        attention: CpuAttention,
        layer_id: int,
    ) -> None:
        """Write the layer down.

        Args:
            places: The rows' positions, and the tables of cos and sin.
            slots: Where the rows' K and V go.
            attention: Over the pool that they go to.
            layer_id: Which layer of the pool this is.
        Mutates: `program`.
        """
        spec = self._spec
        x, normed, attended = View(buffers.x), View(buffers.normed), View(buffers.attended)
        num_rotated = spec.num_qo_heads + spec.num_kv_heads
        q, k = (
            buffers.heads[:, : spec.num_qo_heads],
            buffers.heads[:, spec.num_qo_heads : num_rotated],
        )
        v = buffers.heads[:, num_rotated:]

        program.rms_norm(x, View(self._input_norm), spec.rms_norm_eps, normed)
        program.linear(normed, self._qkv, View(buffers.heads.flatten(1)))
        for heads, norm in zip((q, k), self._qk_norms, strict=True):
            if norm is not None:
                program.rms_norm(View(heads), View(norm.weight), norm.eps, View(heads))
        program.rope(View(buffers.heads[:, :num_rotated]), *places)
        attention.record(program, layer_id, View(q), View(k), View(v), slots, attended)
        program.linear(View(buffers.attended.flatten(1)), self._output, x, add=True)

        program.rms_norm(x, View(self._mlp_norm), spec.rms_norm_eps, normed)
        program.linear_swiglu(normed, self._gate_up, View(buffers.inner))
        program.linear(View(buffers.inner), self._down, x, add=True)


def packed(weight: Tensor, keep: Keep, bias: Tensor | None = None) -> PackedLinear:
    """Return a linear map's weights in the kernels' order."""
    dtype: WeightDType = "int8"
    if keep == "lossless":
        dtype = "bfloat16" if _fits_bfloat16(weight) else "float32"
    return PackedLinear(View(weight), dtype, None if bias is None else View(bias))


def _fits_bfloat16(weight: Tensor) -> bool:
    """Whether no weight changes: most checkpoints are bfloat16, whatever they are loaded as."""
    return bool((weight.to(torch.bfloat16).to(weight.dtype) == weight).all())


def _take(linear: FusedLinear, keep: Keep) -> PackedLinear:
    """Pack a map's weights and let go of the originals."""
    taken = packed(linear.weight, keep, linear.bias)
    linear.weight.data = torch.empty(0)
    return taken
