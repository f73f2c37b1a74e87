"""Decode steps of a large model against what its memory traffic allows.

The bound is the time in which the weights and the KV of a step can be copied, at the speed of a
plain copy that was measured in the same run.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from benchmarks.gpu.batches import Batch, fill, following, new_pool
from benchmarks.gpu.limits import Limits
from benchmarks.gpu.rig import DTYPE
from benchmarks.gpu.row import Row, fast_enough, told
from benchmarks.gpu.serving import Serving
from benchmarks.gpu.subject import describe, first_layers, fitting_model, layer_weights
from radixserve.attention.flashinfer import CASCADE, FLAT
from radixserve.runtime.kv_cache import block_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from benchmarks.gpu.rig import Rig
    from radixserve.config import CascadeConfig
    from radixserve.models.loader import LoadedModel
    from radixserve.runtime.kv_cache import KVCache
    from radixserve.runtime.launch import StepLauncher

TARGET_OF_BOUND = 0.80
TARGET_BUSY = 0.95
RESERVE = 0.85
"""Share of the free memory that a pool may take; the rest is for activations and graphs."""

WARM_UP_STEPS = 3


class DecodeSpeedSection:
    """Step time on the device and on the clock, for each batch size and context."""

    name = "decode"

    def run(self, rig: Rig) -> Iterator[Row]:
        """Yield the rows of one case after the other; the first case is the one with targets."""
        limits = Limits.measure(rig)
        whole = fitting_model(rig)
        for place, (num_reqs, context) in enumerate(rig.sizes.decodes):
            batch = Batch(num_reqs=num_reqs, kv_len=context)
            fitting = _fitting_layers(rig, whole, batch)
            if fitting < 1:
                yield Row(what=batch.name, note="not one layer's KV fits")
                continue
            loaded = first_layers(whole, fitting)
            note = describe(loaded, rig.sizes.big_model)
            yield from _rows(
                _Case(rig, loaded, batch), limits, batch.name, note, is_judged=place == 0
            )
        yield from _shared_rows(rig, whole)


class _Case:
    """One batch, ready to be decoded again and again: nothing in it moves on."""

    def __init__(self, rig: Rig, loaded: LoadedModel, batch: Batch) -> None:
        self._rig, self._loaded, self._batch = rig, loaded, batch
        self._pool: KVCache = fill(new_pool(rig, loaded.spec, batch.num_blocks))

    @property
    def num_bytes(self) -> int:
        """What a step must read: every weight but the embedding, and every token's KV."""
        spec = self._loaded.spec
        weights = layer_weights(self._loaded) + self._loaded.model.head.numel()
        tokens = self._batch.num_reqs * self._batch.kv_len
        return weights * DTYPE.itemsize + tokens * block_bytes(spec, 1, DTYPE)

    def device_s(self) -> float:
        """Return what the model, the logits and the choice of a step take the device."""
        rig, model, metadata = self._rig, self._loaded.model, self._batch.metadata()
        attention = rig.graph_attention(
            rig.attention(self._pool.layers, self._loaded.spec.num_qo_heads), metadata.num_reqs
        )
        token_ids = torch.zeros(metadata.num_reqs, dtype=torch.int64, device=rig.device)
        positions = metadata.positions.to(rig.device)
        with torch.inference_mode():
            attention.plan(metadata)
            replay: Callable[[], Tensor] = rig.capture(
                lambda: model(token_ids, positions, attention)
            )
            return rig.device_seconds(lambda: model.compute_logits(replay()).argmax(-1))

    def chained_s(self, cascade: CascadeConfig = CASCADE) -> float:
        """Return what a step of the runtime takes, each queued behind the one whose tokens it
        takes."""
        launcher, plan = self._launcher(cascade), self._batch.plan()
        pending, plan = launcher.launch(plan), following(plan)
        begin = 0.0
        for count in range(-WARM_UP_STEPS, self._rig.sizes.repeats):
            if count == 0:
                begin = time.perf_counter()
            under_way, plan = launcher.launch(plan), following(plan)
            pending.result()
            pending = under_way
        end = time.perf_counter()
        pending.result()
        return (end - begin) / self._rig.sizes.repeats

    def served_s(self) -> float:
        """Return what a step takes with the scheduler, from prompts that it was given."""
        repeats = self._rig.sizes.repeats
        serving = Serving(
            self._launcher(CASCADE),
            self._pool,
            self._batch,
            num_decodes=repeats + WARM_UP_STEPS + 3,
            vocab_size=len(self._loaded.model.embedding),
        )
        serving.fill()
        for _ in range(WARM_UP_STEPS):
            serving.step()
        begin = time.perf_counter()
        for _ in range(repeats):
            serving.step()
        seconds = time.perf_counter() - begin
        assert serving.num_ahead >= repeats, "the steps were meant to be queued ahead"
        return seconds / repeats

    def _launcher(self, cascade: CascadeConfig) -> StepLauncher:
        return self._rig.launcher(
            self._loaded, self._pool, bucket=self._batch.num_reqs, cascade=cascade
        )


def _fitting_layers(rig: Rig, loaded: LoadedModel, batch: Batch) -> int:
    layers = loaded.spec.num_layers
    all_layers = (batch.num_blocks + 1) * block_bytes(loaded.spec, batch.block_size, DTYPE)
    room = int(rig.free_bytes() * RESERVE)
    return min(layers, room * layers // all_layers)


def _rows(case: _Case, limits: Limits, name: str, note: str, *, is_judged: bool) -> Iterator[Row]:
    device_s = case.device_s()
    bound_s = case.num_bytes / limits.bytes_per_s
    yield told(f"{name}: device", device_s * 1e3, "ms", note=note)
    yield told(f"{name}: step on the clock, runtime", case.chained_s() * 1e3, "ms")
    if not is_judged:
        yield told(f"{name}: memory's bound over device", bound_s / device_s, "")
        return
    yield fast_enough(
        f"{name}: memory's bound over device", bound_s / device_s, "", TARGET_OF_BOUND
    )
    served_s = case.served_s()
    yield told(f"{name}: step on the clock, with scheduler", served_s * 1e3, "ms")
    yield fast_enough(f"{name}: device over clock, so busy", device_s / served_s, "", TARGET_BUSY)


def _shared_rows(rig: Rig, whole: LoadedModel) -> Iterator[Row]:
    """Yield what a whole step takes where requests share a long beginning, both ways: levels are
    launched kernel by kernel, and must make up for that."""
    batch = Batch.of_sharers(rig.sizes)
    fitting = _fitting_layers(rig, whole, batch)
    if fitting < 1:
        yield Row(what=batch.name, note="not one layer's KV fits")
        return
    case = _Case(rig, first_layers(whole, fitting), batch)
    for how, cascade in (("flat, from a graph", FLAT), ("by levels", CASCADE)):
        yield told(f"{batch.name}: step on the clock, {how}", case.chained_s(cascade) * 1e3, "ms")
