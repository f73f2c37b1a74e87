"""Which precision a model computes in."""

from __future__ import annotations

from pathlib import Path

import torch

from radixserve.errors import ConfigError, ModelLoadError

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_GPU_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_KV_DTYPES = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
_NATIVE_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
_CPU_INFO = Path("/proc/cpuinfo")


def choose_dtype(setting: str, *, has_kernels: bool) -> torch.dtype:
    """Return the dtype that `setting` names; "auto" asks what this machine is good at.

    Our kernels widen bfloat16 as they read it, so that it saves memory traffic on any processor.
    torch's multiply it, which without the processor's help is slower than float32.

    Args:
        setting: "auto", "float32" or "bfloat16".
        has_kernels: Whether the native kernels will run the model.
    Raises:
        ModelLoadError: the setting is none of these.
    """
    if setting == "auto":
        return torch.bfloat16 if has_kernels or has_native_bfloat16() else torch.float32
    if setting not in _DTYPES:
        raise ModelLoadError(f"dtype must be auto, float32 or bfloat16; got {setting!r}")
    return _DTYPES[setting]


def choose_gpu_dtype(setting: str) -> torch.dtype:
    """Return the dtype that `setting` names on a GPU, where auto is bfloat16.

    Raises:
        ModelLoadError: the setting is none that the kernels compute in.
    """
    name = "bfloat16" if setting == "auto" else setting
    if name not in _GPU_DTYPES:
        raise ModelLoadError(f"on a GPU dtype must be auto, bfloat16 or float16; got {setting!r}")
    return _GPU_DTYPES[name]


def choose_kv_dtype(setting: str, dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the dtype of K and V.

    Args:
        setting: "auto" for the model's own, "int8" for a CPU, "fp8_e4m3" or "fp8_e5m2" for a GPU.
        dtype: The model's.
        device: Where the pool is.
    Raises:
        ConfigError: nothing on that device reads KV of this dtype.
    """
    if setting == "auto":
        return dtype
    if setting == "int8":
        if device.type != "cpu":
            raise ConfigError("kv_cache_dtype int8 needs a CPU; a GPU has fp8_e4m3 and fp8_e5m2")
        return torch.int8
    if device.type != "cuda":
        raise ConfigError(f"kv_cache_dtype {setting} needs a GPU and the attention of flashinfer")
    return _KV_DTYPES[setting]


def has_native_bfloat16(cpu_info: Path = _CPU_INFO) -> bool:
    """Whether this processor multiplies bfloat16 in hardware; False where it cannot be known.

    Args:
        cpu_info: Linux's description of the processor.
    """
    try:
        lines = cpu_info.read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    flags = (line.partition(":")[2] for line in lines if line.startswith(("flags", "Features")))
    return any(_NATIVE_BFLOAT16 & set(line.split()) for line in flags)
