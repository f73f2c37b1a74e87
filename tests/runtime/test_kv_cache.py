from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from radixserve.core.plan import BlockCopy
from radixserve.errors import ConfigError, InvariantError
from radixserve.runtime.kv_cache import KVCache, block_bytes
from radixserve.types import BlockId


@dataclass(frozen=True)
class Shape:
    num_layers: int = 2
    num_kv_heads: int = 3
    head_dim: int = 8


def make_cache(num_blocks: int = 6, block_size: int = 4) -> KVCache:
    """A pool in which every slot of every layer holds another number."""
    cache = KVCache.allocate(Shape(), num_blocks, block_size, torch.float32)
    for number, layer in enumerate(cache.layers):
        for sign, pool in ((1, layer.k), (-1, layer.v)):
            pool.copy_(sign * (torch.arange(pool.numel()).view(pool.shape) + number * 10_000))
    return cache


def copy(source: int, target: int, num_tokens: int) -> BlockCopy:
    return BlockCopy(BlockId(source), BlockId(target), num_tokens)


def test_a_pool_has_the_layout_that_the_kernels_expect() -> None:
    cache = KVCache.allocate(Shape(), 5, 4, torch.bfloat16)

    assert len(cache.layers) == 2
    assert (cache.num_blocks, cache.block_size) == (5, 4)
    for layer in cache.layers:
        assert layer.k.shape == layer.v.shape == (5, 4, 3, 8)
        assert layer.k.dtype == layer.v.dtype == torch.bfloat16


@pytest.mark.parametrize(("dtype", "width"), [(torch.float32, 4), (torch.bfloat16, 2)])
def test_block_bytes_are_the_bytes_that_a_block_takes(dtype: torch.dtype, width: int) -> None:
    pools = [pool for x in KVCache.allocate(Shape(), 5, 4, dtype).layers for pool in (x.k, x.v)]

    assert block_bytes(Shape(), 4, dtype) == 2 * 2 * 4 * 3 * 8 * width
    assert sum(pool.nbytes for pool in pools) == 5 * block_bytes(Shape(), 4, dtype)


def test_a_partial_copy_moves_its_tokens_in_every_layer_and_nothing_else() -> None:
    cache, before = make_cache(), make_cache()

    cache.copy_blocks([copy(1, 4, 3)])

    for layer, old in zip(cache.layers, before.layers, strict=True):
        for pool, old_pool in ((layer.k, old.k), (layer.v, old.v)):
            assert torch.equal(pool[4, :3], old_pool[1, :3])
            assert torch.equal(pool[4, 3:], old_pool[4, 3:])
            assert torch.equal(pool[:4], old_pool[:4])
            assert torch.equal(pool[5:], old_pool[5:])


def test_one_source_is_copied_to_several_targets_by_different_lengths() -> None:
    cache, before = make_cache(), make_cache()

    cache.copy_blocks([copy(0, 2, 1), copy(0, 3, 4), copy(5, 1, 2)])

    pool, old = cache.layers[1].v, before.layers[1].v
    assert torch.equal(pool[2, :1], old[0, :1])
    assert torch.equal(pool[2, 1:], old[2, 1:])
    assert torch.equal(pool[3], old[0])
    assert torch.equal(pool[1, :2], old[5, :2])


def test_a_chain_of_copies_over_two_steps_carries_the_first_source() -> None:
    cache, before = make_cache(), make_cache()

    cache.copy_blocks([copy(0, 1, 3)])
    cache.copy_blocks([copy(1, 2, 2)])

    assert torch.equal(cache.layers[0].k[2, :2], before.layers[0].k[0, :2])
    assert torch.equal(cache.layers[0].k[2, 2:], before.layers[0].k[2, 2:])


def test_no_copies_change_nothing() -> None:
    cache, before = make_cache(), make_cache()

    cache.copy_blocks([])

    assert torch.equal(cache.layers[0].k, before.layers[0].k)


def test_a_pool_that_no_machine_can_hold_is_refused_with_its_size() -> None:
    num_blocks = 2**40
    size = num_blocks * block_bytes(Shape(), 16, torch.float32)
    with pytest.raises(ConfigError, match=f"{num_blocks} blocks takes {size} bytes"):
        KVCache.allocate(Shape(), num_blocks, 16, torch.float32)


def test_a_dummy_block_comes_after_all_blocks_and_is_none_of_them() -> None:
    cache = KVCache.allocate(Shape(), 5, 4, torch.float32, num_dummies=1)

    assert cache.num_blocks == 5
    assert cache.dummy_block == 5
    assert all(layer.k.shape[0] == 6 for layer in cache.layers)
    with pytest.raises(InvariantError, match="no dummy block"):
        _ = KVCache.allocate(Shape(), 5, 4, torch.float32).dummy_block


def test_a_pool_is_where_it_was_asked_to_be() -> None:
    device = torch.device("meta")

    cache = KVCache.allocate(Shape(), 5, 4, torch.bfloat16, device=device)

    assert cache.device == device
    assert cache.layers[1].v.shape == (5, 4, 3, 8)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16])
def test_copies_move_the_bits_whatever_they_mean(dtype: torch.dtype) -> None:
    cache = KVCache.allocate(Shape(), 3, 4, dtype)
    values = torch.linspace(-2, 2, 4 * 3 * 8).view(4, 3, 8).to(dtype)
    cache.layers[1].k[0] = values

    cache.copy_blocks([copy(0, 2, 3)])

    assert torch.equal(cache.layers[1].k[2, :3].float(), values[:3].float())
    assert cache.layers[1].k[2, 3:].float().eq(0).all()
