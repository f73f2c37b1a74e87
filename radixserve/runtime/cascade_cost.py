"""What it takes for levels to be worth it on this device: timed once, before any port is opened.

A step by levels is launched kernel by kernel, a flat one is replayed from a graph. What that costs
must be won back by reading less KV.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import torch

from radixserve.core.plan import SamplingState, ScheduledReq, StepPlan
from radixserve.device.transfer import synchronize
from radixserve.runtime.batch import build_batch
from radixserve.types import ReqId, SamplingParams, pack_ids

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve.runtime.batch import BatchTensors
    from radixserve.runtime.forward import Forward
    from radixserve.runtime.kv_cache import KVCache

MOST_LAYERS = 8
"""Copied to learn the memory's speed: more than any cache of a device holds."""

NUM_RUNS = 5


class CascadeCost(NamedTuple):
    """What was measured."""

    launch_s: float
    """By which a step takes longer that is launched and not replayed."""
    bytes_per_s: float
    """Read from the device's memory."""
    token_bytes: int
    """KV of a token in all layers."""

    @property
    def min_saved_tokens(self) -> int:
        """Reads of a token that take as long as the launches do."""
        return int(max(0.0, self.launch_s) * self.bytes_per_s / self.token_bytes)


def measure_cascade_cost(
    eager: Forward,
    graphed: Forward,
    pool: KVCache,
    stage: Callable[[BatchTensors], BatchTensors],
    seconds: Callable[[Callable[[], object]], float],
) -> CascadeCost:
    """Time one decode both ways, and copies of the pool.

    One row, so that the launches are not hidden behind work that a larger batch would have: the
    cost is told too high rather than too low.

    Args:
        eager: Launches every kernel.
        graphed: Replays one decode.
        pool: Of which no block is in use; all zeros.
        stage: Brings a batch to the device.
        seconds: Times an action that the device does.
    Mutates: the pool's first block.
    """
    greedy = SamplingState(SamplingParams(temperature=0.0), output_len=0)
    row = ScheduledReq(ReqId("cost-probe"), pack_ids([0]), 0, pack_ids([0]), greedy)
    with torch.inference_mode():
        batch = stage(build_batch(StepPlan(0, (row,)), pool.block_size))
        launch_s = seconds(lambda: eager(batch)) - seconds(lambda: graphed(batch))
        return CascadeCost(launch_s, _bytes_per_s(pool, seconds), _token_bytes(pool))


def _bytes_per_s(pool: KVCache, seconds: Callable[[Callable[[], object]], float]) -> float:
    halves = [layer.blocks for layer in pool.layers[:MOST_LAYERS]]
    num_bytes = sum(half.nbytes for pair in halves for half in pair)

    def copy() -> None:
        for k, v in halves:
            v.copy_(k)

    return num_bytes / max(seconds(copy), 1e-9)


def _token_bytes(pool: KVCache) -> int:
    layers = pool.layers
    return sum(half[0].nbytes for layer in layers for half in layer.blocks) // pool.block_size


def quickest_s(device: torch.device, action: Callable[[], object]) -> float:
    """Return the seconds from an action's start to the end of the device's work, of the quickest
    of a few runs."""
    times = []
    for _ in range(NUM_RUNS):
        synchronize(device)
        begin = time.perf_counter()
        action()
        synchronize(device)
        times.append(time.perf_counter() - begin)
    return min(times)
