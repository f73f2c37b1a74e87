"""The prefill of one long prompt against matrix products that were measured in the same run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from benchmarks.gpu.batches import Batch, new_pool
from benchmarks.gpu.limits import Limits
from benchmarks.gpu.row import fast_enough, told
from benchmarks.gpu.subject import describe, fitting_model, layer_weights

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.gpu.rig import Rig
    from benchmarks.gpu.row import Row
    from radixserve.models.loader import LoadedModel

TARGET_OF_MATMUL = 0.55


class PrefillSpeedSection:
    """Floating-point operations a second of a prompt that nothing is cached of."""

    name = "prefill"

    def run(self, rig: Rig) -> Iterator[Row]:
        """Yield the speed, and its share of a bare product's."""
        limits = Limits.measure(rig)
        loaded = fitting_model(rig)
        length = rig.sizes.prefill_len
        seconds = _seconds(rig, loaded, length)
        speed = num_flops(loaded, length) / seconds
        name = f"{length} tokens"
        note = describe(loaded, rig.sizes.big_model)
        yield told(f"{name}: device", seconds * 1e3, "ms", note=note)
        yield told(f"{name}: speed", speed / 1e12, "TFLOP/s")
        share = speed / limits.flops
        yield fast_enough(f"{name}: share of a bare product", share, "", TARGET_OF_MATMUL)


def num_flops(loaded: LoadedModel, length: int) -> float:
    """Return the operations of a prompt's layers: two a weight and token, and causal attention."""
    spec = loaded.spec
    seen = length * (length + 1) / 2
    attention = 4.0 * seen * spec.num_qo_heads * spec.head_dim * spec.num_layers
    return 2.0 * length * layer_weights(loaded) + attention


def _seconds(rig: Rig, loaded: LoadedModel, length: int) -> float:
    batch = Batch(num_reqs=1, kv_len=length, qo_len=length)
    pool = new_pool(rig, loaded.spec, batch.num_blocks)
    attention = rig.attention(pool.layers, loaded.spec.num_qo_heads)
    metadata = batch.metadata()
    token_ids = torch.zeros(length, dtype=torch.int64, device=rig.device)
    positions = metadata.positions.to(rig.device)
    with torch.inference_mode():
        attention.plan(metadata)
        return rig.device_seconds(lambda: loaded.model(token_ids, positions, attention))
