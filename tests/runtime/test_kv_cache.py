from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import torch

from radixserve.core.plan import BlockCopy
from radixserve.errors import ConfigError, InvariantError
from radixserve.runtime.kv_cache import KVCache, block_bytes
from radixserve.types import BlockId

if TYPE_CHECKING:
    from radixserve.attention.layer_kv import KVLayout


@dataclass(frozen=True)
class Shape:
    num_layers: int = 2
    num_kv_heads: int = 3
    head_dim: int = 8


@dataclass(frozen=True)
class Kind:
    """How a pool lies and what it holds."""

    block_size: int = 4
    dtype: torch.dtype = torch.float32
    layout: KVLayout = "rows"


KINDS = (
    Kind(),
    Kind(layout="columns"),
    Kind(block_size=16, layout="columns"),
    Kind(block_size=16, dtype=torch.int8, layout="columns"),
    Kind(dtype=torch.int8),
)
every_kind = pytest.mark.parametrize("kind", KINDS, ids=str)


def make_cache(kind: Kind = KINDS[0], num_blocks: int = 6) -> KVCache:
    """A pool in which no two neighbours hold the same number."""
    cache = KVCache.allocate(Shape(), num_blocks, kind.block_size, kind.dtype, layout=kind.layout)
    for number, layer in enumerate(cache.layers):
        for part, tensor in enumerate(layer.tensors):
            count = torch.arange(tensor.numel()).view(tensor.shape) + number * 10_000
            tensor.copy_((count * (1, -1)[part % 2]) % 251 - 120)
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


@pytest.mark.parametrize(
    ("dtype", "head_bytes"), [(torch.float32, 8 * 4), (torch.bfloat16, 8 * 2), (torch.int8, 8 + 4)]
)
def test_block_bytes_are_the_bytes_that_a_block_takes(dtype: torch.dtype, head_bytes: int) -> None:
    layers = KVCache.allocate(Shape(), 5, 4, dtype).layers

    assert block_bytes(Shape(), 4, dtype) == 2 * 2 * 4 * 3 * head_bytes
    num_bytes = sum(tensor.nbytes for layer in layers for tensor in layer.tensors)
    assert num_bytes == 5 * block_bytes(Shape(), 4, dtype)


def test_columns_put_the_tokens_of_a_whole_load_side_by_side() -> None:
    (layer, _) = make_cache(Kind(block_size=32, layout="columns")).layers

    assert layer.k.stride() == (3 * 8 * 32, 1, 8 * 32, 32)
    assert layer.v.stride() == (3 * 8 * 32, 8, 8 * 32, 1)


def test_columns_of_too_few_tokens_for_a_load_lie_as_v_does() -> None:
    (layer, _) = make_cache(Kind(block_size=8, layout="columns")).layers

    assert layer.k.stride() == layer.v.stride() == (3 * 8 * 8, 8, 8 * 8, 1)


@every_kind
def test_a_partial_copy_moves_its_tokens_in_every_layer_and_no_other_block(
    kind: Kind,
) -> None:
    cache, before = make_cache(kind), make_cache(kind)

    cache.copy_blocks([copy(1, 4, 3)])

    for layer, old in zip(cache.layers, before.layers, strict=True):
        for pool, old_pool in zip(layer.tensors, old.tensors, strict=True):
            assert not torch.equal(old_pool[4, :3], old_pool[1, :3])
            assert torch.equal(pool[4, :3], old_pool[1, :3])
            assert torch.equal(pool[:4], old_pool[:4])
            assert torch.equal(pool[5:], old_pool[5:])


@every_kind
def test_one_source_is_copied_to_several_targets_by_different_lengths(kind: Kind) -> None:
    cache, before = make_cache(kind), make_cache(kind)

    cache.copy_blocks([copy(0, 2, 1), copy(0, 3, kind.block_size), copy(5, 1, 2)])

    for pool, old in zip(cache.layers[1].tensors, before.layers[1].tensors, strict=True):
        assert torch.equal(pool[2, :1], old[0, :1])
        assert torch.equal(pool[3], old[0])
        assert torch.equal(pool[1, :2], old[5, :2])


def test_a_chain_of_copies_over_two_steps_carries_the_first_source() -> None:
    cache, before = make_cache(), make_cache()

    cache.copy_blocks([copy(0, 1, 3)])
    cache.copy_blocks([copy(1, 2, 2)])

    assert torch.equal(cache.layers[0].k[2, :2], before.layers[0].k[0, :2])


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
