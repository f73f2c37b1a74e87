"""The scales of 8-bit K and V that some checkpoints bring along, one pair a layer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from radixserve.attention.kv_writer import KVScale
from radixserve.errors import ModelLoadError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

_NAME = re.compile(
    r"model\.layers\.(?P<layer>\d+)\.self_attn\."
    r"(?:(?:k_proj\.)?(?P<k>k_scale)|(?:v_proj\.)?(?P<v>v_scale))"
)
"""As compressed-tensors writes them, and as ModelOpt does, below the projections."""


def is_kv_scale(name: str) -> bool:
    """Whether a tensor of this name is the scale of a layer's K or V."""
    return _NAME.fullmatch(name) is not None


def read_kv_scales(found: Mapping[str, Tensor], num_layers: int) -> tuple[KVScale, ...] | None:
    """Return each layer's scales; None if the checkpoint has none.

    Args:
        found: The tensors for which `is_kv_scale` holds.
        num_layers: Of the model.
    Raises:
        ModelLoadError: they are not one pair a layer, or one is not a single positive number.
    """
    if not found:
        return None
    k: dict[int, float] = {}
    v: dict[int, float] = {}
    for name, tensor in found.items():
        match = _NAME.fullmatch(name)
        assert match is not None
        (k if match["k"] else v)[int(match["layer"])] = _positive(name, tensor)
    layers = range(num_layers)
    for half, scales in (("K", k), ("V", v)):
        if set(scales) != set(layers):
            raise ModelLoadError(
                f"the weights have scales of {half} for the layers {sorted(scales)}, and the model "
                f"has {num_layers} layers"
            )
    return tuple(KVScale(k[layer], v[layer]) for layer in layers)


def _positive(name: str, tensor: Tensor) -> float:
    if tensor.numel() != 1:
        raise ModelLoadError(
            f"{name} has shape {list(tensor.shape)}; KV scales are one number a layer"
        )
    value = float(tensor)
    if not 0 < value < float("inf"):
        raise ModelLoadError(f"{name} is {value}, which nothing can be scaled by")
    return value
