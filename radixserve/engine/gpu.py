"""The parts of the runtime, fitted together for a GPU.

    TreeOrderedLauncher ─ DeviceLauncher ─ ModelRunner ─ Staging
                                               ├─ GraphedForward ─┬─ a graph for each decode bucket
                                               │                  └─ EagerForward for all the rest
                                               └─ DeviceSampler

Everything here takes the device as it comes; what only a GPU can do is in `GpuParts`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from radixserve.attention.flashinfer import FlashInferAttention, FlashInferOptions, load_package
from radixserve.engine.compute import Compute
from radixserve.errors import ConfigError
from radixserve.models.dtype import choose_kv_dtype
from radixserve.models.flashinfer_ops import FlashInferOps
from radixserve.runtime.cascade_cost import measure_cascade_cost, quickest_s
from radixserve.runtime.cuda_graph import CudaGraphCapture, GraphedForward, decode_buckets
from radixserve.runtime.device_memory import (
    PoolNeed,
    choose_device_blocks,
    largest_plan,
    measure_memory,
)
from radixserve.runtime.device_sampler import DeviceSampler
from radixserve.runtime.forward import EagerForward
from radixserve.runtime.kv_cache import KVCache, block_bytes
from radixserve.runtime.launch import DeviceLauncher
from radixserve.runtime.model_runner import ModelRunner
from radixserve.runtime.staging import Staging
from radixserve.runtime.tree_order import TreeOrderedLauncher

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from radixserve.attention.flashinfer_kernels import Kernels
    from radixserve.config import EngineConfig
    from radixserve.models.loader import LoadedModel
    from radixserve.models.ops import LayerOps
    from radixserve.runtime.cuda_graph import GraphCapture
    from radixserve.runtime.device_memory import DeviceMemory
    from radixserve.runtime.host_kv import HostKV

BYTES_PER_GRAPH = 16 * 2**20
"""What one bucket's attention keeps on the device, and what its graph does."""

FEW_TOKENS = 2048
"""A step of fewer tokens leaves much of a large GPU idle while a prompt is computed."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuParts:
    """What a machine without a GPU has to do without."""

    kernels: Kernels | None = None
    """The package's own when None."""
    ops: LayerOps | None = None
    """Those of the package when None."""
    make_capture: Callable[[], GraphCapture] = CudaGraphCapture
    measure: Callable[[torch.device, Callable[[], object]], DeviceMemory] = measure_memory
    seconds: Callable[[torch.device, Callable[[], object]], float] = quickest_s

    def layer_ops(self, device: torch.device) -> LayerOps:
        """Return a layer's small operations on a device.

        Raises:
            BackendUnavailableError: they are the package's, which cannot run here.
        """
        return FlashInferOps(load_package(device)) if self.ops is None else self.ops


REAL_PARTS = GpuParts()


@dataclass(slots=True, eq=False)
class _Shop:
    """Makes the parts of one engine; they all know the same settings."""

    config: EngineConfig
    loaded: LoadedModel
    device: torch.device
    vocab_size: int
    parts: GpuParts
    dtype: torch.dtype = field(init=False)
    kv_dtype: torch.dtype = field(init=False)

    def __post_init__(self) -> None:
        self.dtype = self.loaded.model.embedding.dtype
        self.kv_dtype = choose_kv_dtype(self.config.cache.kv_cache_dtype, self.dtype, self.device)

    @property
    def buckets(self) -> tuple[int, ...]:
        return decode_buckets(self.config.scheduler.max_num_seqs)

    @property
    def max_len(self) -> int:
        limit = self.loaded.spec.max_position
        return min(self.config.model.max_model_len or limit, limit)

    def need(self) -> PoolNeed:
        block_size = self.config.cache.block_size
        return PoolNeed(
            block_bytes=block_bytes(self.loaded.spec, block_size, self.kv_dtype),
            block_size=block_size,
            num_tokens=self.config.model.max_model_len or 1,
            is_fp8=self.kv_dtype.itemsize == 1,
        )

    def pool(self, num_blocks: int) -> KVCache:
        return KVCache.allocate(
            self.loaded.spec,
            num_blocks,
            self.config.cache.block_size,
            self.kv_dtype,
            device=self.device,
            num_dummies=1,
        )

    def attention(self, pool: KVCache) -> FlashInferAttention:
        return FlashInferAttention(
            pool.layers,
            num_qo_heads=self.loaded.spec.num_qo_heads,
            options=FlashInferOptions(
                q_dtype=self.dtype,
                kv_scales=self.loaded.kv_scales,
                cascade=self.config.attention.cascade,
            ),
            kernels=self.parts.kernels,
        )

    def staging(self) -> Staging:
        return Staging(self.config.scheduler.max_num_batched_tokens, self.device)

    def run_largest_step(self) -> None:
        """Run the largest step in a pool of its own, and let go of all of it."""
        limits, block_size = self.config.scheduler, self.config.cache.block_size
        plan = largest_plan(
            limits.max_num_seqs,
            limits.max_num_batched_tokens,
            max_len=self.max_len,
            block_size=block_size,
        )
        pool = self.pool(-(-limits.max_num_batched_tokens // block_size))
        sampler = DeviceSampler(self.vocab_size)
        runner = ModelRunner(
            self.loaded.model, pool, self.attention(pool), sampler, stage=self.staging()
        )
        runner.execute(plan)

    def num_blocks(self) -> int:
        found = self.parts.measure(self.device, self.run_largest_step)
        kept = BYTES_PER_GRAPH * len(self.buckets)
        memory = replace(found, step_bytes=found.step_bytes + kept)
        num_blocks = choose_device_blocks(self.config.cache, self.need(), memory)
        _log.info(
            "KV pool on %s: %d blocks of %d tokens, %s, %.2f GiB; the largest step takes %.2f GiB",
            self.device,
            num_blocks,
            self.config.cache.block_size,
            self.kv_dtype,
            num_blocks * self.need().block_bytes / 2**30,
            found.step_bytes / 2**30,
        )
        return num_blocks

    def forward(
        self, pool: KVCache, attention: FlashInferAttention, stage: Staging
    ) -> GraphedForward:
        model = self.loaded.model
        blocks = min(-(-self.max_len // pool.block_size), pool.num_blocks)
        eager = EagerForward(model, attention)
        graphed = GraphedForward(
            eager,
            model,
            attention,
            buckets=self.buckets,
            pool=pool,
            max_blocks_per_req=blocks,
        )
        graphed.capture(self.parts.make_capture())
        if self.config.attention.cascade.max_levels > 1:
            seconds = partial(self.parts.seconds, self.device)
            cost = measure_cascade_cost(eager, graphed, pool, stage, seconds)
            graphed.min_saved_tokens = cost.min_saved_tokens
            _log.info(
                "measured: launches %.2f ms a step, memory %.0f GB/s; decodes read what they share "
                "once where that spares %d tokens or more",
                cost.launch_s * 1e3,
                cost.bytes_per_s / 1e9,
                cost.min_saved_tokens,
            )
        return graphed


def build_gpu_compute(
    config: EngineConfig,
    loaded: LoadedModel,
    device: torch.device,
    *,
    vocab_size: int,
    make_host_kv: Callable[[KVCache], HostKV | None],
    parts: GpuParts = REAL_PARTS,
) -> Compute:
    """Size the pool, capture the graphs, wire everything.

    Args:
        config: The settings.
        loaded: On `device`.
        device: Where everything is.
        vocab_size: Ids from here on are never sampled.
        make_host_kv: Makes the swap space of a pool.
        parts: What there is of a GPU.
    Raises:
        ConfigError: a setting does not go with a GPU, or its memory is too small.
        BackendUnavailableError: the kernels cannot take this model.
    """
    if config.model.quantization != "none":
        raise ConfigError(
            f"quantization {config.model.quantization!r} needs the native kernels; add --device cpu"
        )
    if config.scheduler.max_num_batched_tokens < FEW_TOKENS:
        _log.warning(
            "a step has %d tokens at most (max_num_batched_tokens), which is little for a GPU: "
            "configs/gpu.toml has more",
            config.scheduler.max_num_batched_tokens,
        )
    loaded = replace(loaded, model=loaded.model.with_ops(parts.layer_ops(device)))
    shop = _Shop(config, loaded, device, vocab_size, parts)
    if shop.kv_dtype.itemsize == 1 and loaded.kv_scales is None:
        _log.info("the model brings no KV scales: K and V are stored as 8 bits with scales of 1")
    pool = shop.pool(shop.num_blocks())
    host_kv = make_host_kv(pool)
    attention, stage = shop.attention(pool), shop.staging()
    runner = ModelRunner(
        loaded.model,
        pool,
        attention,
        DeviceSampler(vocab_size),
        host_kv,
        forward=shop.forward(pool, attention, stage),
        stage=stage,
    )
    runner.warm_up()
    return Compute(runner, TreeOrderedLauncher(DeviceLauncher(runner)), pool, host_kv)
