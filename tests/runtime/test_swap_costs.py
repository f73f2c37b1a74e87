from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from radixserve.attention.reference import ReferenceAttention
from radixserve.runtime.host_kv import HostKV
from radixserve.runtime.kv_cache import KVCache, block_bytes
from radixserve.runtime.model_runner import ModelRunner
from radixserve.runtime.sampler import Sampler
from radixserve.runtime.swap_costs import measure_swap_costs

if TYPE_CHECKING:
    from radixserve.models.loader import LoadedModel


@pytest.mark.parametrize(("num_blocks", "host_blocks"), [(16, 8), (1, 4), (8, 1)])
def test_costs_are_measured_in_pools_of_any_size(
    tiny_model: LoadedModel, num_blocks: int, host_blocks: int
) -> None:
    pool = KVCache.allocate(tiny_model.spec, num_blocks, 4, torch.float32)
    host = HostKV.allocate_beside(pool, host_blocks)
    attention = ReferenceAttention(pool.layers, num_qo_heads=tiny_model.spec.num_qo_heads)
    sampler = Sampler(tiny_model.spec.vocab_size)
    runner = ModelRunner(tiny_model.model, pool, attention, sampler, host)

    costs = measure_swap_costs(runner, pool, host)

    assert costs.block_bytes == block_bytes(tiny_model.spec, 4, torch.float32)
    assert costs.copy_bytes_per_s > 0
    assert costs.prefill_tokens_per_s > 0
    assert costs.copy_overhead_s >= 0
    assert 0 < costs.copy_s(1) < costs.copy_s(100)
    assert costs.copy_s(0) == 0
    assert costs.prefill_s(0) == 0
    assert 0 <= costs.prefill_s(1) <= costs.prefill_s(5) <= costs.prefill_s(40)
    assert costs.prefill_s(400) < costs.prefill_s(4000)
