"""`Rig`: the machine under test, as a section sees it. One is a GPU; the other, for dry runs, the
CPU with the plain attention in place of FlashInfer's."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from radixserve.attention.flashinfer import (
    CASCADE,
    FlashInferAttention,
    FlashInferOptions,
    load_kernels,
)
from radixserve.attention.reference import ReferenceAttention
from radixserve.config import CascadeConfig
from radixserve.engine.gpu import REAL_PARTS, GpuParts
from radixserve.errors import BackendUnavailableError
from radixserve.models.ops import PLAIN_OPS
from radixserve.runtime.cuda_graph import GraphedForward
from radixserve.runtime.device_sampler import DeviceSampler
from radixserve.runtime.forward import EagerForward
from radixserve.runtime.launch import DeviceLauncher
from radixserve.runtime.memory import free_memory_bytes
from radixserve.runtime.model_runner import ModelRunner
from radixserve.runtime.staging import Staging
from radixserve.runtime.tree_order import TreeOrderedLauncher

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from torch import Tensor

    from benchmarks.gpu.sizes import Sizes
    from radixserve.attention.backend import AttentionBackend
    from radixserve.attention.layer_kv import LayerKV
    from radixserve.models.decoder import CausalLM
    from radixserve.models.loader import LoadedModel
    from radixserve.models.ops import LayerOps
    from radixserve.runtime.forward import Forward
    from radixserve.runtime.kv_cache import KVCache
    from radixserve.runtime.launch import StepLauncher

DTYPE = torch.bfloat16
"""Of weights and rows, everywhere."""

MAX_STAGED_TOKENS = 16384

AS_TOLD = CascadeConfig(min_shared_tokens=2**40)
"""Levels only where a batch says so."""


class Rig(Protocol):
    """What a section needs of a machine."""

    @property
    def device(self) -> torch.device: ...
    @property
    def sizes(self) -> Sizes: ...
    @property
    def model_folder(self) -> Path | None:
        """The small real model; None if there is none."""

    @property
    def is_dry(self) -> bool: ...

    @property
    def ops(self) -> LayerOps:
        """A layer's small operations on this machine."""

    def kv_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Return the pool's dtype where `dtype` is wanted."""
        ...

    def attention(self, layers: Sequence[LayerKV], num_qo_heads: int) -> AttentionBackend:
        """Return the attention under test; by levels only where a batch says so."""
        ...

    def graph_attention(self, attention: AttentionBackend, bucket: int) -> AttentionBackend:
        """Return its twin for one graph."""
        ...

    def capture(self, action: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Return what repeats `action`."""
        ...

    def launcher(
        self,
        loaded: LoadedModel,
        pool: KVCache,
        *,
        bucket: int,
        cascade: CascadeConfig = CASCADE,
    ) -> StepLauncher:
        """Return the whole runtime; flat decodes of up to `bucket` requests come from a graph."""
        ...

    def device_seconds(self, action: Callable[[], object]) -> float:
        """Return what one run of `action` takes the device."""
        ...

    def synchronize(self) -> None: ...

    def free_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class GpuRig:
    """An NVIDIA GPU with FlashInfer."""

    sizes: Sizes
    model_folder: Path | None
    device: torch.device
    parts: GpuParts = REAL_PARTS

    @property
    def is_dry(self) -> bool:
        """Whether the figures mean nothing."""
        return False

    @classmethod
    def find(cls, sizes: Sizes, model_folder: Path | None) -> GpuRig:
        """Return this machine's.

        Raises:
            BackendUnavailableError: there is no GPU, or no package; says so in one line.
        """
        if not torch.cuda.is_available():
            raise BackendUnavailableError("no NVIDIA GPU was found; --dry-run needs none")
        device = torch.device("cuda", torch.cuda.current_device())
        load_kernels(device)
        return cls(sizes, model_folder, device)

    @property
    def ops(self) -> LayerOps:
        """FlashInfer's."""
        return self.parts.layer_ops(self.device)

    def kv_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Return it: the kernels read all of them."""
        return dtype

    def attention(self, layers: Sequence[LayerKV], num_qo_heads: int) -> FlashInferAttention:
        """Return FlashInfer's."""
        return FlashInferAttention(
            layers,
            num_qo_heads=num_qo_heads,
            options=FlashInferOptions(q_dtype=DTYPE, cascade=AS_TOLD),
            kernels=self.parts.kernels,
        )

    def graph_attention(self, attention: AttentionBackend, bucket: int) -> AttentionBackend:
        """Return its twin for one graph."""
        assert isinstance(attention, FlashInferAttention)
        return attention.for_graph(bucket)

    def capture(self, action: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Capture a CUDA graph."""
        return self.parts.make_capture()(action)

    def launcher(
        self,
        loaded: LoadedModel,
        pool: KVCache,
        *,
        bucket: int,
        cascade: CascadeConfig = CASCADE,
    ) -> StepLauncher:
        """Return the runtime as the engine fits it together, with one graph."""
        model, options = loaded.model, FlashInferOptions(q_dtype=DTYPE, cascade=cascade)
        attention = FlashInferAttention(
            pool.layers,
            num_qo_heads=loaded.spec.num_qo_heads,
            options=options,
            kernels=self.parts.kernels,
        )
        forward = GraphedForward(
            EagerForward(model, attention), model, attention, buckets=(bucket,), pool=pool
        )
        forward.capture(self.parts.make_capture())
        return _launcher(model, pool, attention, forward)

    def device_seconds(self, action: Callable[[], object]) -> float:
        """Queue the runs one behind the other, between two events."""
        action()
        begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        begin.record()
        for _ in range(self.sizes.repeats):
            action()
        end.record()
        torch.cuda.synchronize()
        milliseconds: float = begin.elapsed_time(end)
        return milliseconds / 1e3 / self.sizes.repeats

    def synchronize(self) -> None:
        """Wait for the GPU."""
        torch.cuda.synchronize()

    def free_bytes(self) -> int:
        """Return what can be allocated, torch's own cache emptied before."""
        gc.collect()
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info()[0]


@dataclass(frozen=True, slots=True)
class DryRig:
    """The CPU: every section runs, its times mean nothing."""

    sizes: Sizes
    model_folder: Path | None

    @property
    def device(self) -> torch.device:
        """Where everything is."""
        return torch.device("cpu")

    @property
    def is_dry(self) -> bool:
        """Whether the figures mean nothing."""
        return True

    @property
    def ops(self) -> LayerOps:
        """Those in plain torch."""
        return PLAIN_OPS

    def kv_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Return bfloat16, in which every 8-bit float can be told: plain torch reads no others."""
        return DTYPE if dtype.itemsize == 1 else dtype

    def attention(self, layers: Sequence[LayerKV], num_qo_heads: int) -> AttentionBackend:
        """Return the plain one."""
        return ReferenceAttention(layers, num_qo_heads=num_qo_heads)

    def graph_attention(self, attention: AttentionBackend, bucket: int) -> AttentionBackend:
        """Return the same: the plain one needs no twin."""
        return attention

    def capture(self, action: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Return the action, which is its own repetition."""
        return action

    def launcher(
        self,
        loaded: LoadedModel,
        pool: KVCache,
        *,
        bucket: int,
        cascade: CascadeConfig = CASCADE,
    ) -> StepLauncher:
        """Return the runtime without graphs, flat."""
        attention = self.attention(pool.layers, loaded.spec.num_qo_heads)
        return _launcher(loaded.model, pool, attention, EagerForward(loaded.model, attention))

    def device_seconds(self, action: Callable[[], object]) -> float:
        """Return what the host took."""
        begin = time.perf_counter()
        for _ in range(self.sizes.repeats):
            action()
        return (time.perf_counter() - begin) / self.sizes.repeats

    def synchronize(self) -> None:
        """Do nothing: the host waits for itself."""

    def free_bytes(self) -> int:
        """Return what the machine has left."""
        return free_memory_bytes()


def _launcher(
    model: CausalLM, pool: KVCache, attention: AttentionBackend, forward: Forward
) -> StepLauncher:
    runner = ModelRunner(
        model,
        pool,
        attention,
        DeviceSampler(len(model.embedding)),
        forward=forward,
        stage=Staging(MAX_STAGED_TOKENS, pool.device),
    )
    return TreeOrderedLauncher(DeviceLauncher(runner))
