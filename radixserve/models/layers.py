"""The decoder's layers: fused projections around an attention that someone else computes.

Every layer says which tensors of a checkpoint it is made of (`checkpoint_targets`), as views into
its own parameters. The views of all layers together cover every parameter exactly once; that is
how the loader knows that nothing was left unwritten.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.attention.backend import AttentionBackend
    from radixserve.models.config import ModelSpec
    from radixserve.models.ops import LayerOps, Rotation


@dataclass(frozen=True, slots=True, eq=False)
class ForwardPass:
    """What all layers of one forward pass have in common."""

    ops: LayerOps
    rotation: Rotation
    """Of the rows' positions."""
    attention: AttentionBackend
    """Planned for the batch."""


def _uninitialised(*shape: int, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)


class FusedLinear(nn.Module):
    """Several linear maps of one input, as one matrix product.

    Args:
        names: What a checkpoint calls each part.
        in_size: Numbers in the input.
        out_sizes: Numbers in each part of the output, in the order of `names`.
        has_bias: Whether each part has a bias.
        dtype: Of the weights and of the computation.
    """

    def __init__(
        self,
        names: Sequence[str],
        in_size: int,
        out_sizes: Sequence[int],
        *,
        has_bias: bool,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self._parts = tuple(zip(names, out_sizes, strict=True))
        self.weight = _uninitialised(sum(out_sizes), in_size, dtype=dtype)
        self.bias = _uninitialised(sum(out_sizes), dtype=dtype) if has_bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the parts side by side, [T, sum(out_sizes)], for x [T, in_size]."""
        return F.linear(x, self.weight, self.bias)

    def checkpoint_targets(self, prefix: str) -> dict[str, Tensor]:
        """Return where each tensor of a checkpoint goes."""
        targets: dict[str, Tensor] = {}
        start = 0
        for name, size in self._parts:
            rows = slice(start, start + size)
            targets[f"{prefix}{name}.weight"] = self.weight[rows]
            if self.bias is not None:
                targets[f"{prefix}{name}.bias"] = self.bias[rows]
            start += size
        return targets


class RMSNorm(nn.Module):
    """Scales each row of the residual stream, or each head, to unit root mean square, then by a
    weight.

    Args:
        size: Numbers in a row.
        eps: Added to the mean square.
        dtype: Of the weight.
    Source: arXiv 1910.07467.
    """

    def __init__(self, size: int, *, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.eps = eps
        self.weight = _uninitialised(size, dtype=dtype)

    def forward(self, share: Tensor | None, residual: Tensor, ops: LayerOps) -> Tensor:
        """Add what the sub-layer before gave, if there was one, and return the norm of the sum.

        Args:
            share: [T, size], or None.
            residual: [T, size].
            ops: What computes it.
        Mutates: `residual`, and `share`, which is lost.
        """
        if share is None:
            return ops.norm(residual, self.weight, self.eps)
        return ops.add_norm(share, residual, self.weight, self.eps)

    def norm_heads_(self, heads: Tensor, ops: LayerOps) -> None:
        """Replace each head of [T, num_heads, size] by its norm."""
        ops.norm_heads_(heads, self.weight, self.eps)

    def checkpoint_targets(self, prefix: str) -> dict[str, Tensor]:
        """Return where each tensor of a checkpoint goes."""
        return {f"{prefix}.weight": self.weight}


class Attention(nn.Module):
    """Projections, QK-norm and rotation around one layer's attention.

    Args:
        spec: The model's shape.
        layer_id: Which layer of the KV pool this is.
        dtype: Of the weights.
    """

    def __init__(self, spec: ModelSpec, layer_id: int, *, dtype: torch.dtype) -> None:
        super().__init__()
        self._layer_id = layer_id
        self._heads = (spec.num_qo_heads, spec.num_kv_heads, spec.num_kv_heads)
        self._head_dim = spec.head_dim
        q_size, kv_size = spec.num_qo_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        self.qkv = FusedLinear(
            ("q_proj", "k_proj", "v_proj"),
            spec.hidden_size,
            (q_size, kv_size, kv_size),
            has_bias=spec.qkv_bias,
            dtype=dtype,
        )
        self.output = FusedLinear(
            ("o_proj",), q_size, (spec.hidden_size,), has_bias=spec.output_bias, dtype=dtype
        )
        self.q_norm: RMSNorm | None = None
        self.k_norm: RMSNorm | None = None
        if spec.qk_norm:
            self.q_norm = RMSNorm(spec.head_dim, eps=spec.rms_norm_eps, dtype=dtype)
            self.k_norm = RMSNorm(spec.head_dim, eps=spec.rms_norm_eps, dtype=dtype)

    def forward(self, x: Tensor, around: ForwardPass) -> Tensor:
        """Return the attention's share of the residual, [T, hidden_size], for x of that shape.

        The backend gets q, k and v as views of one buffer: dense in a row's heads, not from row to
        row.
        """
        heads = self.qkv(x).unflatten(-1, (-1, self._head_dim))
        q, k, v = heads.split(self._heads, dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            self.q_norm.norm_heads_(q, around.ops)
            self.k_norm.norm_heads_(k, around.ops)
        num_qo_heads, num_kv_heads, _ = self._heads
        around.rotation.rotate_(heads[:, : num_qo_heads + num_kv_heads], num_qo_heads)
        attended = around.attention.run(self._layer_id, q, k, v)
        return self.output(attended.flatten(1))  # type: ignore[no-any-return]

    def checkpoint_targets(self, prefix: str) -> dict[str, Tensor]:
        """Return where each tensor of a checkpoint goes."""
        targets = self.qkv.checkpoint_targets(prefix) | self.output.checkpoint_targets(prefix)
        for name, norm in (("q_norm", self.q_norm), ("k_norm", self.k_norm)):
            if norm is not None:
                targets |= norm.checkpoint_targets(f"{prefix}{name}")
        return targets


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)), with gate and up as one product.

    Args:
        spec: The model's shape.
        dtype: Of the weights.
    Source: arXiv 2002.05202.
    """

    def __init__(self, spec: ModelSpec, *, dtype: torch.dtype) -> None:
        super().__init__()
        hidden, inner = spec.hidden_size, spec.intermediate_size
        self.gate_up = FusedLinear(
            ("gate_proj", "up_proj"), hidden, (inner, inner), has_bias=spec.mlp_bias, dtype=dtype
        )
        self.down = FusedLinear(
            ("down_proj",), inner, (hidden,), has_bias=spec.mlp_bias, dtype=dtype
        )

    def forward(self, x: Tensor, ops: LayerOps) -> Tensor:
        """Return the MLP's share of the residual, [T, hidden_size], for x of that shape."""
        return self.down(ops.silu_mul(self.gate_up(x)))  # type: ignore[no-any-return]

    def checkpoint_targets(self, prefix: str) -> dict[str, Tensor]:
        """Return where each tensor of a checkpoint goes."""
        return self.gate_up.checkpoint_targets(prefix) | self.down.checkpoint_targets(prefix)


class DecoderLayer(nn.Module):
    """One pre-norm transformer layer.

    Args:
        spec: The model's shape.
        layer_id: Which layer of the KV pool its attention uses.
        dtype: Of the weights.
    """

    def __init__(self, spec: ModelSpec, layer_id: int, *, dtype: torch.dtype) -> None:
        super().__init__()
        self._prefix = f"model.layers.{layer_id}."
        self.input_norm = RMSNorm(spec.hidden_size, eps=spec.rms_norm_eps, dtype=dtype)
        self.attention = Attention(spec, layer_id, dtype=dtype)
        self.mlp_norm = RMSNorm(spec.hidden_size, eps=spec.rms_norm_eps, dtype=dtype)
        self.mlp = GatedMLP(spec, dtype=dtype)

    def forward(self, share: Tensor | None, residual: Tensor, around: ForwardPass) -> Tensor:
        """Add the share of the layer before to the residual stream, then this layer's first.

        Args:
            share: [T, hidden_size], or None for the first layer.
            residual: [T, hidden_size].
            around: What all layers have in common.
        Returns:
            this layer's second share, not added yet: the norm that follows does it.
        Mutates: `residual`, and `share`, which is lost.
        """
        ops = around.ops
        share = self.attention(self.input_norm(share, residual, ops), around)
        return self.mlp(self.mlp_norm(share, residual, ops), ops)  # type: ignore[no-any-return]

    def checkpoint_targets(self) -> dict[str, Tensor]:
        """Return where each tensor of a checkpoint goes."""
        return {
            **self.input_norm.checkpoint_targets(f"{self._prefix}input_layernorm"),
            **self.attention.checkpoint_targets(f"{self._prefix}self_attn."),
            **self.mlp_norm.checkpoint_targets(f"{self._prefix}post_attention_layernorm"),
            **self.mlp.checkpoint_targets(f"{self._prefix}mlp."),
        }
