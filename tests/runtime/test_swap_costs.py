from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from radixserve.attention.reference import ReferenceAttention
from radixserve.core.plan import StepPlan, StepResult
from radixserve.runtime.host_kv import HostKV
from radixserve.runtime.kv_cache import KVCache, block_bytes
from radixserve.runtime.model_runner import ModelRunner
from radixserve.runtime.sampler import Sampler
from radixserve.runtime.step_times import StepTimes
from radixserve.runtime.swap_costs import measure_swap_costs

if TYPE_CHECKING:
    from radixserve.models.loader import LoadedModel


@pytest.mark.parametrize(("num_blocks", "host_blocks"), [(16, 8), (1, 4), (8, 1)])
@pytest.mark.parametrize("max_len", [None, 7])
def test_costs_are_measured_in_pools_of_any_size(
    tiny_model: LoadedModel, num_blocks: int, host_blocks: int, max_len: int | None
) -> None:
    pool = KVCache.allocate(tiny_model.spec, num_blocks, 4, torch.float32)
    host = HostKV.allocate_beside(pool, host_blocks)
    attention = ReferenceAttention(pool.layers, num_qo_heads=tiny_model.spec.num_qo_heads)
    sampler = Sampler(tiny_model.spec.vocab_size)
    runner = ModelRunner(tiny_model.model, pool, attention, sampler, host)

    costs = measure_swap_costs(runner, pool, host, max_len=max_len)

    assert costs.block_bytes == block_bytes(tiny_model.spec, 4, torch.float32)
    assert costs.copy_bytes_per_s > 0
    assert costs.prefill_tokens_per_s > 0
    assert costs.copy_overhead_s >= 0
    assert 0 < costs.copy_s(1) < costs.copy_s(100)
    assert costs.copy_s(0) == 0
    assert costs.prefill_s(0) == 0
    assert 0 <= costs.prefill_s(1) <= costs.prefill_s(5) <= costs.prefill_s(40)
    assert costs.prefill_s(400) < costs.prefill_s(4000)


def test_no_step_is_longer_than_the_model_is(tiny_model: LoadedModel) -> None:
    """A table of positions ends where the model does; the pool may go on."""
    longest = tiny_model.spec.max_position
    pool = KVCache.allocate(tiny_model.spec, longest // 4 + 100, 4, torch.float32)
    seen: list[int] = []

    class Noting:
        def __init__(self) -> None:
            self.times = StepTimes()

        def kernel_seconds(self) -> dict[str, float]:
            return {}

        def execute(self, plan: StepPlan) -> StepResult:
            seen.extend(req.start + req.extend_len for req in plan.reqs)
            return StepResult(plan.step, (None,) * len(plan.reqs))

    measure_swap_costs(Noting(), pool, HostKV.allocate_beside(pool, 4), max_len=40)

    assert max(seen) == 40
