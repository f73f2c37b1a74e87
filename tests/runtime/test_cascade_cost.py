"""What levels must spare: from three times that are given, and timed for real."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from radixserve.attention.reference import ReferenceAttention
from radixserve.runtime.cascade_cost import CascadeCost, measure_cascade_cost, quickest_s
from radixserve.runtime.forward import EagerForward
from radixserve.runtime.kv_cache import KVCache, block_bytes
from radixserve.runtime.staging import Staging

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve.models.loader import LoadedModel

CPU = torch.device("cpu")


@pytest.mark.parametrize(("launch_s", "expected"), [(0.002, 8000), (0.0, 0), (-0.001, 0)])
def test_the_reads_spared_take_as_long_as_the_launches(launch_s: float, expected: int) -> None:
    cost = CascadeCost(launch_s, bytes_per_s=4e12, token_bytes=1_000_000)

    assert cost.min_saved_tokens == expected


def test_both_ways_and_the_memory_are_timed(tiny_model: LoadedModel) -> None:
    spec = tiny_model.spec
    pool = KVCache.allocate(spec, 12, 4, torch.float32)
    attention = ReferenceAttention(pool.layers, num_qo_heads=spec.num_qo_heads)
    eager = EagerForward(tiny_model.model, attention)
    taken = iter([0.5, 0.2, 0.1])

    def seconds(action: Callable[[], object]) -> float:
        action()
        return next(taken)

    cost = measure_cascade_cost(eager, eager, pool, Staging(8, CPU), seconds)

    num_bytes = 12 * block_bytes(spec, 4, torch.float32)
    assert cost.launch_s == pytest.approx(0.3)
    assert cost.bytes_per_s == pytest.approx(num_bytes / 0.1)
    assert cost.token_bytes == block_bytes(spec, 1, torch.float32)
    assert not any(half[1:].any() for layer in pool.layers for half in layer.blocks)


def test_the_quickest_of_a_few_runs_counts() -> None:
    runs: list[int] = []

    assert quickest_s(CPU, lambda: runs.append(1)) >= 0
    assert len(runs) > 1
