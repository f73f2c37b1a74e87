"""Loaded weights become a model on the kernels that its attention runs on."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal

from radixserve import kernels
from radixserve.attention.cpu import CpuAttention
from radixserve.errors import ConfigError
from radixserve.models.native import NativeLM

if TYPE_CHECKING:
    from radixserve.attention.backend import AttentionBackend
    from radixserve.models.decoder import Decoder
    from radixserve.models.loader import LoadedModel

_log = logging.getLogger(__name__)


def build_decoder(
    loaded: LoadedModel,
    attention: AttentionBackend,
    *,
    quantization: Literal["none", "int8"] = "none",
    capacity: int,
) -> Decoder:
    """Return the model, ready to run beside its attention.

    Args:
        loaded: The weights.
        attention: Decides: the model is native if this is.
        quantization: See `ModelConfig`.
        capacity: Tokens of a step for which there is room at once.
    Raises:
        ConfigError: the weights are to be quantised, and the kernels that could are not used.
    Mutates: `loaded`, whose weights a native model takes over.
    """
    if not isinstance(attention, CpuAttention):
        if quantization != "none":
            reason = kernels.why_not() or "another attention backend was asked for"
            raise ConfigError(f"quantization {quantization!r} needs the native kernels: {reason}")
        return loaded.model
    decoder = NativeLM(
        loaded.model,
        loaded.spec,
        attention,
        keep="lossless" if quantization == "none" else quantization,
        capacity=capacity,
    )
    _log.info(
        "native kernels: %s, %d threads; %.2f GB of %s weights",
        kernels.variant(),
        kernels.num_threads(),
        decoder.num_weight_bytes / 1e9,
        decoder.weight_dtype,
    )
    return decoder
