"""Decode attention by levels against the same flat, where many requests share a long beginning."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from benchmarks.gpu.batches import Batch, fill, new_pool, with_levels
from benchmarks.gpu.rig import DTYPE
from benchmarks.gpu.row import at_most, fast_enough, told
from radixserve.models.config import ModelSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from benchmarks.gpu.rig import Rig
    from benchmarks.gpu.row import Row
    from radixserve.attention.metadata import AttentionMetadata
    from radixserve.runtime.kv_cache import KVCache

TARGET_SPEEDUP = 2.0
TOLERANCE = 2e-2
NUM_LAYERS = 8
"""Enough that no cache keeps a layer's KV until its next turn."""


class CascadeSpeedSection:
    """A layer's attention, both ways, over the same pool."""

    name = "cascade"

    def run(self, rig: Rig) -> Iterator[Row]:
        """Yield both times, their ratio, and how far the outputs are apart."""
        batch = Batch.of_sharers(rig.sizes)
        layers = _Layers(rig, batch)
        flat, cascade = batch.metadata(), with_levels(batch.metadata())
        assert cascade.levels, "the batch was meant to be attended to by levels"
        difference = (layers.output(flat) - layers.output(cascade)).abs().max()
        name = batch.name
        yield at_most(f"{name}: difference", float(difference), "abs", TOLERANCE)
        for what, batch_metadata in (("flat", flat), ("by levels", cascade)):
            seconds = layers.eager_seconds(batch_metadata)
            yield told(f"{name}: {what}, a layer, launched", seconds * 1e6, "us")
        flat_s, cascade_s = layers.captured_seconds(flat), layers.captured_seconds(cascade)
        yield told(f"{name}: flat, a layer, device", flat_s * 1e6, "us")
        yield told(f"{name}: by levels, a layer, device", cascade_s * 1e6, "us")
        speedup = flat_s / cascade_s
        yield fast_enough(f"{name}: times as fast, device", speedup, "", TARGET_SPEEDUP)


class _Layers:
    def __init__(self, rig: Rig, batch: Batch) -> None:
        spec = ModelSpec.from_hf({**rig.sizes.big_model, "num_hidden_layers": NUM_LAYERS})
        self._rig = rig
        self._pool: KVCache = fill(new_pool(rig, spec, batch.num_blocks))
        self._attention = rig.attention(self._pool.layers, spec.num_qo_heads)
        heads = (spec.num_qo_heads, spec.num_kv_heads, spec.num_kv_heads)
        torch.manual_seed(0)
        self._rows = [
            torch.randn(batch.num_reqs, count, spec.head_dim, device=rig.device).to(DTYPE)
            for count in heads
        ]

    def output(self, metadata: AttentionMetadata) -> Tensor:
        """Return the first layer's."""
        self._attention.plan(metadata)
        return self._attention.run(0, *self._rows).float()

    def eager_seconds(self, metadata: AttentionMetadata) -> float:
        """Return what a layer takes where the host launches each kernel, as the engine does."""
        self._attention.plan(metadata)
        return self._rig.device_seconds(self._run_all) / NUM_LAYERS

    def captured_seconds(self, metadata: AttentionMetadata) -> float:
        """Return what a layer takes the device alone: some kernels are shorter than a launch."""
        self._attention.plan(metadata)
        return self._rig.device_seconds(self._rig.capture(self._run_all)) / NUM_LAYERS

    def _run_all(self) -> Tensor:
        outs = [self._attention.run(layer_id, *self._rows) for layer_id in range(NUM_LAYERS)]
        return outs[-1]
