"""Where a model and its KV live: in host memory, or on a GPU."""

from __future__ import annotations

import logging
from importlib.util import find_spec

import torch

from radixserve.attention.flashinfer import load_kernels
from radixserve.errors import ConfigError

_log = logging.getLogger(__name__)

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
"""The GPU is torch's current one: the first that CUDA_VISIBLE_DEVICES names."""


def choose_device(setting: str, *, backend: str) -> torch.device:
    """Return the device that the settings ask for; "auto" takes a GPU that FlashInfer can run on.

    Args:
        setting: "auto", "cpu" or "cuda".
        backend: The attention backend's name, or "auto": all but flashinfer are at home on the
            host.
    Raises:
        ConfigError: there is no GPU, or the backend does not run on the device.
        BackendUnavailableError: flashinfer is asked for and cannot run here.
    """
    has_gpu = torch.cuda.is_available()
    if setting == "cuda" and not has_gpu:
        raise ConfigError(
            f"device cuda: torch {torch.__version__} finds no NVIDIA GPU; --device cpu needs none"
        )
    if setting == "cuda" and backend not in ("auto", "flashinfer"):
        raise ConfigError(f"device cuda: the attention backend {backend!r} runs on the host only")
    if backend == "flashinfer":
        device = CUDA if has_gpu and setting != "cpu" else CPU
        load_kernels(device)  # before the weights: what is missing is missing at once
        return device
    if setting == "cuda":
        return CUDA
    return CUDA if setting == "auto" and backend == "auto" and _is_usable(has_gpu=has_gpu) else CPU


def _is_usable(*, has_gpu: bool) -> bool:
    if not has_gpu:
        return False
    if find_spec("flashinfer") is None:
        _log.warning("a GPU is here, but not used: install radixserve[cuda] for that")
        return False
    return True
