"""What a decode step costs the host: the scheduler, the batch, the attention's plan."""

from __future__ import annotations

import random
import statistics
import time
from typing import TYPE_CHECKING

from benchmarks.busy_scheduler import Decoding
from benchmarks.gpu.batches import Batch, new_pool, with_levels
from benchmarks.gpu.row import told
from radixserve.models.config import ModelSpec
from radixserve.runtime.batch import build_batch
from radixserve.runtime.tree_order import tree_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.gpu.rig import Rig
    from benchmarks.gpu.row import Row


class HostTimeSection:
    """Medians, of 64 requests on a GPU's sizes."""

    name = "host"

    def run(self, rig: Rig) -> Iterator[Row]:
        """Yield one row a part of a step."""
        num_reqs, context = rig.sizes.decodes[0]
        batch = Batch(num_reqs=num_reqs, kv_len=context)
        plan = batch.plan()
        name = batch.name
        yield _timed(rig, f"{name}: tree order", lambda: tree_order(plan.reqs))
        yield _timed(rig, f"{name}: tensors", lambda: build_batch(plan, batch.block_size))
        yield from _plans(rig, batch)
        yield from _plans(rig, Batch.of_sharers(rig.sizes))
        for what, is_ahead in (("schedule and update", False), ("the same, a step ahead", True)):
            times = Decoding.measure(
                rig.sizes.scheduler_samples,
                stagger=True,
                num_waiting=0,
                dice=random.Random(0),
                is_ahead=is_ahead,
            )
            whole = f"{what}, 64 decodes of 1000 tokens"
            yield told(whole, statistics.median(times) / 1e3, "us")


def _plans(rig: Rig, batch: Batch) -> Iterator[Row]:
    """Yield the time to plan the attention, and to find levels and plan by them where there are."""
    spec = ModelSpec.from_hf({**rig.sizes.big_model, "num_hidden_layers": 1})
    attention = rig.attention(new_pool(rig, spec, batch.num_blocks).layers, spec.num_qo_heads)
    metadata, name = batch.metadata(), batch.name
    yield _timed(rig, f"{name}: plan, flat", lambda: attention.plan(metadata))
    yield _timed(rig, f"{name}: find levels", lambda: with_levels(metadata))
    levelled = with_levels(metadata)
    if levelled.levels:
        yield _timed(rig, f"{name}: plan, levels", lambda: attention.plan(levelled))


def _timed(rig: Rig, what: str, action: Callable[[], object]) -> Row:
    action()
    times = []
    for _ in range(rig.sizes.repeats):
        rig.synchronize()
        begin = time.perf_counter()
        action()
        times.append(time.perf_counter() - begin)
    return told(what, statistics.median(times) * 1e6, "us")
