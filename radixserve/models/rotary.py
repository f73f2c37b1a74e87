"""Rotary position embedding: the frequencies of each kind, and one table of cos and sin.

Source: RoFormer (arXiv 2104.09864); YaRN (arXiv 2309.00071) sections 3.2 and 3.4; Llama 3.1's
scaling as published with its reference code.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from radixserve.models.rotary_config import RotarySpec


class RotaryTable(nn.Module):
    """cos and sin of every angle, for every position.

    Args:
        spec: The kind of embedding.
        head_dim: Numbers in a head; even.
        max_position: Positions 0 to max_position - 1 can be looked up.
    """

    cos_sin: Tensor
    """[max_position, head_dim], float32: half a row of cos, then half a row of sin"""

    def __init__(self, spec: RotarySpec, *, head_dim: int, max_position: int) -> None:
        super().__init__()
        place = torch.get_default_device()
        with torch.device("cpu"):  # the same table wherever it goes: devices round otherwise
            inverse, scale = inverse_frequencies(spec, head_dim)
            angles = torch.arange(max_position, dtype=torch.float32)[:, None] * inverse
            table = torch.cat((angles.cos().mul_(scale), angles.sin().mul_(scale)), dim=-1)
        self.register_buffer("cos_sin", table.to(place), persistent=False)

    @property
    def cos(self) -> Tensor:
        """[max_position, head_dim / 2], float32."""
        return self.cos_sin.chunk(2, dim=-1)[0]

    @property
    def sin(self) -> Tensor:
        """[max_position, head_dim / 2], float32."""
        return self.cos_sin.chunk(2, dim=-1)[1]

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the factors that `rotate_` takes, for rows at `positions`.

        Args:
            positions: [T], int64, each below max_position.
        Returns:
            cos and signed sin, each [T, 1, head_dim] float32; the first half of sin is negated.
        """
        cos, sin = self.cos[positions], self.sin[positions]
        return torch.cat((cos, cos), -1).unsqueeze(1), torch.cat((-sin, sin), -1).unsqueeze(1)


def rotate_(heads: Tensor, cos: Tensor, signed_sin: Tensor) -> None:
    """Rotate each head by its row's angles. The products are taken in float32.

    Args:
        heads: [T, num_heads, head_dim], any strides.
        cos: [T, 1, head_dim], float32.
        signed_sin: [T, 1, head_dim], float32.
    Mutates: `heads`.
    """
    rotated = heads.float()  # `heads` itself where it is float32
    first, second = rotated.chunk(2, dim=-1)
    swapped = torch.cat((second, first), dim=-1)
    rotated.mul_(cos).addcmul_(swapped, signed_sin)
    if rotated is not heads:
        heads.copy_(rotated)


def inverse_frequencies(spec: RotarySpec, head_dim: int) -> tuple[Tensor, float]:
    """Return the angle per position of each pair, and the factor on cos and sin.

    Returns:
        [head_dim / 2] float32, and the factor.
    """
    # The order of the operations is transformers': one unit in the last place of a frequency is
    # 1e-3 of an angle at position 16,000 (test_tables_equal_transformers_in_every_layout).
    periods = spec.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    plain = 1.0 / periods
    match spec.kind:
        case "default":
            return plain, 1.0
        case "linear":
            return plain / spec.factor, 1.0
        case "llama3":
            return _llama3(plain, spec), 1.0
        case "yarn":
            return _yarn(periods, spec), _yarn_attention_factor(spec)


def _llama3(plain: Tensor, spec: RotarySpec) -> Tensor:
    # Short waves stay, long ones are stretched by the factor, those between are blended.
    waves_in_context = spec.original_max_position / (2 * math.pi / plain)
    span = spec.high_freq_factor - spec.low_freq_factor
    keep = ((waves_in_context - spec.low_freq_factor) / span).clamp(0, 1)
    return (1 - keep) * plain / spec.factor + keep * plain


def _yarn(periods: Tensor, spec: RotarySpec) -> Tensor:
    num_pairs = periods.shape[0]
    low, high = _yarn_ramp(spec, 2 * num_pairs)
    ramp = ((torch.arange(num_pairs, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    keep = 1 - ramp
    return 1.0 / (spec.factor * periods) * (1 - keep) + 1.0 / periods * keep


def _yarn_ramp(spec: RotarySpec, head_dim: int) -> tuple[float, float]:
    def dim_turning(turns: float) -> float:
        waves = spec.original_max_position / (turns * 2 * math.pi)
        return head_dim * math.log(waves) / (2 * math.log(spec.theta))

    low, high = dim_turning(spec.beta_fast), dim_turning(spec.beta_slow)
    if spec.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    return (low, high) if low != high else (low, high + 0.001)


def _yarn_attention_factor(spec: RotarySpec) -> float:
    if spec.attention_factor is not None:
        return spec.attention_factor
    if spec.mscale and spec.mscale_all_dim:
        return _mscale(spec.factor, spec.mscale) / _mscale(spec.factor, spec.mscale_all_dim)
    return _mscale(spec.factor, 1.0)


def _mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0
