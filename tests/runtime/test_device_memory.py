from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from radixserve.attention.reference import ReferenceAttention
from radixserve.config import CacheConfig
from radixserve.errors import ConfigError
from radixserve.runtime.device_memory import (
    DeviceMemory,
    PoolNeed,
    choose_device_blocks,
    largest_plan,
)
from radixserve.runtime.device_sampler import DeviceSampler
from radixserve.runtime.kv_cache import KVCache
from radixserve.runtime.model_runner import ModelRunner

if TYPE_CHECKING:
    from radixserve.models.loader import LoadedModel

GIB = 2**30
MEMORY = DeviceMemory(total_bytes=100 * GIB, free_bytes=82 * GIB, step_bytes=5 * GIB)
"""75 of them are a pool's at most: 2 % of all stay free."""


def need(num_tokens: int = 1, *, block_bytes: int = GIB, is_fp8: bool = False) -> PoolNeed:
    return PoolNeed(block_bytes=block_bytes, block_size=16, num_tokens=num_tokens, is_fp8=is_fp8)


def test_the_pool_takes_its_share_of_all_memory_less_weights_and_steps() -> None:
    # 90 of 100, of which 18 are taken, 5 are for steps and 2 stay free; one of 65 is the dummy.
    assert choose_device_blocks(CacheConfig(), need(), MEMORY) == 64


def test_a_byte_budget_goes_before_the_share_and_holds_the_dummy_block_too() -> None:
    cache = CacheConfig(kv_cache_memory_bytes=10 * GIB)

    assert choose_device_blocks(cache, need(), MEMORY) == 9


def test_a_number_of_blocks_goes_before_everything() -> None:
    cache = CacheConfig(kv_cache_memory_bytes=10 * GIB, num_blocks=3)

    assert choose_device_blocks(cache, need(), MEMORY) == 3


@pytest.mark.parametrize(
    ("cache", "key"),
    [
        (CacheConfig(num_blocks=76), "cache.num_blocks"),
        (CacheConfig(kv_cache_memory_bytes=76 * GIB), "cache.kv_cache_memory_bytes"),
    ],
)
def test_more_than_is_left_is_refused(cache: CacheConfig, key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} asks for 76.00 GiB; the GPU has 75.00 GiB left"):
        choose_device_blocks(cache, need(), MEMORY)


def test_a_context_that_does_not_fit_is_refused_with_all_that_would() -> None:
    with pytest.raises(ConfigError) as caught:
        choose_device_blocks(CacheConfig(), need(70 * 16), MEMORY)

    text = str(caught.value)
    assert "must hold 1120 tokens, 70.00 GiB" in text
    assert "max_model_len 1024" in text
    assert "gpu_memory_utilization 0.961" in text
    assert "kv_cache_dtype fp8_e4m3" in text
    assert "the largest step takes 5.00 GiB" in text


def test_what_would_not_help_is_not_proposed() -> None:
    with pytest.raises(ConfigError) as caught:
        choose_device_blocks(CacheConfig(), need(90 * 16, is_fp8=True), MEMORY)

    assert "gpu_memory_utilization" not in str(caught.value)
    assert "fp8" not in str(caught.value)


def test_a_gpu_that_the_weights_fill_is_refused() -> None:
    full = DeviceMemory(total_bytes=100 * GIB, free_bytes=4 * GIB, step_bytes=5 * GIB)

    with pytest.raises(ConfigError, match="0 tokens fit"):
        choose_device_blocks(CacheConfig(), need(), full)


@given(
    num_tokens=st.integers(1, 3000),
    free=st.integers(0, 100),
    step=st.integers(0, 30),
    share=st.floats(0.05, 1.0),
)
def test_what_is_proposed_works(num_tokens: int, free: int, step: int, share: float) -> None:
    memory = DeviceMemory(total_bytes=100 * GIB, free_bytes=free * GIB, step_bytes=step * GIB)
    try:
        choose_device_blocks(CacheConfig(gpu_memory_utilization=share), need(num_tokens), memory)
    except ConfigError as error:
        if found := re.search(r"max_model_len (\d+)", str(error)):
            cut = need(int(found[1]))
            choose_device_blocks(CacheConfig(gpu_memory_utilization=share), cut, memory)
        if found := re.search(r"gpu_memory_utilization ([\d.]+)", str(error)):
            cache = CacheConfig(gpu_memory_utilization=float(found[1]))
            choose_device_blocks(cache, need(num_tokens), memory)


@pytest.mark.parametrize(("seqs", "tokens"), [(1, 1), (4, 4), (4, 40), (16, 37)])
@pytest.mark.parametrize("max_len", [40, 12])
def test_the_largest_plan_has_every_row_and_every_token_and_runs_in_a_small_pool(
    tiny_model: LoadedModel, max_len: int, seqs: int, tokens: int
) -> None:
    plan = largest_plan(seqs, tokens, max_len=max_len, block_size=4)
    assert len(plan.reqs) == seqs
    assert plan.num_tokens == min(tokens, seqs * max_len)
    assert max(req.extend_len for req in plan.reqs) <= max_len
    cache = KVCache.allocate(tiny_model.spec, -(-tokens // 4), 4, torch.float32)
    sampler = DeviceSampler(tiny_model.spec.vocab_size)
    attention = ReferenceAttention(cache.layers, num_qo_heads=tiny_model.spec.num_qo_heads)

    result = ModelRunner(tiny_model.model, cache, attention, sampler).execute(plan)

    assert len(result.next_tokens) == seqs
    assert all(req.sampling is not None for req in plan.reqs)


def test_the_largest_plan_has_no_position_that_the_model_lacks(tiny_model: LoadedModel) -> None:
    longest = tiny_model.spec.max_position

    plan = largest_plan(3, 2 * longest, max_len=longest, block_size=16)

    assert [req.extend_len for req in plan.reqs] == [longest, longest - 1, 1]
