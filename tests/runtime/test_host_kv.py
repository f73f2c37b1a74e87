"""KV blocks that go to host memory and come back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
import torch

from radixserve.core.plan import BlockSwap
from radixserve.errors import ConfigError
from radixserve.runtime.host_kv import HostKV, runs_of
from radixserve.runtime.kv_cache import KVCache
from radixserve.types import ReqId, pack_ids

if TYPE_CHECKING:
    from radixserve.attention.layer_kv import KVLayout


@dataclass(frozen=True)
class Shape:
    num_layers: int = 2
    num_kv_heads: int = 3
    head_dim: int = 8


KINDS: tuple[tuple[int, torch.dtype, KVLayout], ...] = (
    (4, torch.float32, "rows"),
    (16, torch.bfloat16, "columns"),
    (16, torch.int8, "columns"),
)
every_kind = pytest.mark.parametrize(("block_size", "dtype", "layout"), KINDS)


def make_pool(
    block_size: int = 4, dtype: torch.dtype = torch.float32, layout: KVLayout = "rows"
) -> KVCache:
    """A pool in which blocks of no two places hold the same."""
    pool = KVCache.allocate(Shape(), 6, block_size, dtype, layout=layout)
    for number, layer in enumerate(pool.layers):
        for part, tensor in enumerate(layer.tensors):
            count = torch.arange(tensor.numel()).view(tensor.shape) + number * 10_000
            tensor.copy_((count * (1, -1)[part % 2]) % 251 - 120)
    return pool


def swap(blocks: list[int], host_blocks: list[int]) -> BlockSwap:
    return BlockSwap(ReqId("r"), pack_ids(blocks), pack_ids(host_blocks))


def test_a_swap_space_is_laid_out_like_the_pool() -> None:
    pool = KVCache.allocate(Shape(), 6, 16, torch.bfloat16, layout="columns")

    host = HostKV.allocate_beside(pool, 9)

    assert host.num_blocks == 9
    assert len(host.layers) == 2
    for layer in host.layers:
        assert layer.k.shape == layer.v.shape == (9, 16, 3, 8)
        assert layer.k.stride() == pool.layers[0].k.stride()
        assert layer.k.dtype == layer.v.dtype == torch.bfloat16


@every_kind
@pytest.mark.parametrize("is_apart", [False, True])
def test_saved_blocks_come_back_to_other_places_unchanged(
    block_size: int, dtype: torch.dtype, layout: KVLayout, *, is_apart: bool
) -> None:
    pool, before = (make_pool(block_size, dtype, layout) for _ in range(2))
    host = replace(HostKV.allocate_beside(pool, 4), is_apart=is_apart)

    host.save(pool, [swap([1, 4], [3, 0]), swap([2], [1])])
    for layer in pool.layers:
        for tensor in layer.tensors:
            tensor.zero_()
    host.restore(pool, [swap([0, 5], [0, 3]), swap([3], [1])])

    for layer, old in zip(pool.layers, before.layers, strict=True):
        for tensor, old_tensor in zip(layer.tensors, old.tensors, strict=True):
            assert torch.equal(tensor[[0, 5, 3]], old_tensor[[4, 1, 2]])
            assert tensor[[1, 2, 4]].eq(0).all()


def test_saving_changes_the_named_host_blocks_and_nothing_of_the_pool() -> None:
    pool, before = make_pool(), make_pool()
    host = HostKV.allocate_beside(pool, 4)

    host.save(pool, [swap([1, 4], [3, 0])])

    for layer, old, saved in zip(pool.layers, before.layers, host.layers, strict=True):
        assert torch.equal(layer.k, old.k)
        assert torch.equal(layer.v, old.v)
        assert torch.equal(saved.v[[3, 0]], old.v[[1, 4]])
        assert saved.k[[1, 2]].eq(0).all()


@pytest.mark.parametrize(
    ("blocks", "runs"),
    [
        ([], []),
        ([4], [(0, 4, 1)]),
        ([4, 5, 6], [(0, 4, 3)]),
        ([6, 5, 4], [(0, 6, 1), (1, 5, 1), (2, 4, 1)]),
        ([1, 2, 7, 8, 9, 3], [(0, 1, 2), (2, 7, 3), (5, 3, 1)]),
    ],
)
def test_blocks_that_lie_together_are_one_run(
    blocks: list[int], runs: list[tuple[int, int, int]]
) -> None:
    assert runs_of(blocks) == runs


def test_blocks_of_8_bit_floats_are_saved_and_restored() -> None:
    pool = KVCache.allocate(Shape(), 3, 4, torch.float8_e4m3fn)
    values = torch.linspace(-3, 3, 4 * 3 * 8).view(4, 3, 8).to(torch.float8_e4m3fn)
    pool.layers[1].k[1] = values
    host = HostKV.allocate_beside(pool, 2)

    host.save(pool, [swap([1], [0])])
    host.restore(pool, [swap([2], [0])])

    assert torch.equal(pool.layers[1].k[2].float(), values.float())


def test_no_swaps_change_nothing() -> None:
    pool, before = make_pool(), make_pool()
    host = HostKV.allocate_beside(pool, 4)

    host.save(pool, [])
    host.restore(pool, [])

    assert torch.equal(pool.layers[0].k, before.layers[0].k)
    assert host.layers[0].k.eq(0).all()


def test_a_swap_space_that_no_machine_can_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match="swap_space_bytes"):
        HostKV.allocate_beside(make_pool(), 2**40)
