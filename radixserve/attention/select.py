"""Which attention backend serves: a name from the settings becomes an object."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from radixserve import kernels
from radixserve.attention.cpu import CpuAttention
from radixserve.attention.flashinfer import FlashInferAttention
from radixserve.attention.reference import ReferenceAttention
from radixserve.errors import BackendUnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from radixserve.attention.backend import AttentionBackend
    from radixserve.attention.layer_kv import LayerKV


_log = logging.getLogger(__name__)


class BackendFactory(Protocol):
    """Builds a backend over a KV pool, or raises BackendUnavailableError saying what is missing."""

    def __call__(
        self, layers: Sequence[LayerKV], *, num_qo_heads: int, scale: float | None = None
    ) -> AttentionBackend: ...


BACKENDS: Mapping[str, BackendFactory] = {
    "cpu": CpuAttention,
    "flashinfer": FlashInferAttention,
    "reference": ReferenceAttention,
}
"""Every backend by its name in the settings."""

AUTO_ORDER: tuple[str, ...] = ("cpu", "reference")
"""What "auto" tries over a pool in host memory, the fastest first; the last runs everywhere."""

AUTO_ORDER_CUDA: tuple[str, ...] = ("flashinfer",)
"""What it tries over a pool on a CUDA device."""


def has_kernels(name: str) -> bool:
    """Whether the native kernels will run for a backend of that name, as far as is known before
    there is a pool."""
    return name in ("auto", "cpu") and kernels.is_available()


def select_backend(
    name: str, layers: Sequence[LayerKV], *, num_qo_heads: int, scale: float | None = None
) -> AttentionBackend:
    """Return the backend called `name` over the pool `layers`.

    Args:
        name: A key of `BACKENDS`, or "auto" for the fastest one that runs here.
        layers: The KV pool, one entry a layer.
        num_qo_heads: Query heads; a multiple of the pool's KV heads.
        scale: Factor on the scores; `head_dim ** -0.5` when None.
    Raises:
        BackendUnavailableError: no backend has this name, or it cannot run here.
    """
    if name == "auto":
        return _first_available(layers, num_qo_heads=num_qo_heads, scale=scale)
    if name not in BACKENDS:
        known = ", ".join(sorted(BACKENDS))
        raise BackendUnavailableError(f"no attention backend is called {name!r}; known: {known}")
    return BACKENDS[name](layers, num_qo_heads=num_qo_heads, scale=scale)


def _first_available(
    layers: Sequence[LayerKV], *, num_qo_heads: int, scale: float | None
) -> AttentionBackend:
    reasons = []
    is_on_gpu = bool(layers) and layers[0].k.is_cuda
    for name in AUTO_ORDER_CUDA if is_on_gpu else AUTO_ORDER:
        try:
            backend = BACKENDS[name](layers, num_qo_heads=num_qo_heads, scale=scale)
        except BackendUnavailableError as error:
            reasons.append(f"{name}: {error}")
            continue
        for reason in reasons:
            _log.warning("a faster attention backend cannot run: %s", reason)
        return backend
    raise BackendUnavailableError("no attention backend runs here; " + "; ".join(reasons))
