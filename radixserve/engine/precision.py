"""Where an engine's settings put the model, and in which precision."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from radixserve.attention.select import has_kernels
from radixserve.models.device import choose_device
from radixserve.models.dtype import choose_dtype, choose_gpu_dtype, choose_kv_dtype

if TYPE_CHECKING:
    import torch

    from radixserve.config import EngineConfig


class Precision(NamedTuple):
    """What is chosen for this machine before anything is loaded."""

    device: torch.device
    dtype: torch.dtype
    """Of the weights."""
    kv_dtype: torch.dtype


def choose_precision(config: EngineConfig) -> Precision:
    """Return what the settings come to on this machine.

    Raises:
        ConfigError: there is no such device here, or it does not compute in what is asked for.
        BackendUnavailableError: flashinfer is asked for and cannot run here.
    """
    backend = config.attention.backend
    device = choose_device(config.model.device, backend=backend)
    if device.type == "cuda":
        dtype = choose_gpu_dtype(config.model.dtype)
    else:
        dtype = choose_dtype(config.model.dtype, has_kernels=has_kernels(backend))
    return Precision(device, dtype, choose_kv_dtype(config.cache.kv_cache_dtype, dtype, device))
