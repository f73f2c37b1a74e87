from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from radixserve import kernels
from tests.kernels.attention_mix import (
    DTYPES,
    LAYOUTS,
    Arrays,
    Mix,
    Request,
    attend,
    attend_alone,
    mixes,
    same_bits,
    set_plan,
    truth,
)
from tests.kernels.machines import VARIANTS, machine

if TYPE_CHECKING:
    from radixserve.attention.layer_kv import KVLayout

if not kernels.is_available():
    pytest.skip(kernels.why_not(), allow_module_level=True)


def decodes(*lens: int, shared: int = 0, **shape: Any) -> Mix:
    """Decodes over `lens` cached tokens; all begin with the first one's `shared` tokens."""
    first, *others = (Request(qo_len=1, start=length) for length in lens)
    children = (replace(each, parent=0, shared=shared) for each in others)
    return Mix(requests=(first, *children), **shape)


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=25, deadline=None)
@given(mix=mixes())
def test_attention_is_that_of_float64_to_rounding(variant: str, mix: Mix) -> None:
    arrays = Arrays.draw(mix)
    with machine(variant=variant, threads=2):
        out = attend(mix, arrays)
    np.testing.assert_allclose(out.double().numpy(), truth(mix, arrays), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=25, deadline=None)
@given(mix=mixes())
def test_neither_sharing_nor_threads_change_a_bit(variant: str, mix: Mix) -> None:
    arrays = Arrays.draw(mix)
    with machine(variant=variant, threads=2):
        expected = attend(mix, arrays, share=False)
        assert same_bits(attend(mix, arrays, share=True), expected)
    with machine(variant=variant, threads=1):
        assert same_bits(attend(mix, arrays, share=False), expected)
        assert same_bits(attend(mix, arrays, share=True), expected)


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=12, deadline=None)
@given(mix=mixes())
def test_the_layout_changes_no_bit(variant: str, mix: Mix) -> None:
    expected, *others = (replace(mix, layout=layout) for layout in LAYOUTS)
    with machine(variant=variant, threads=2):
        out = attend(expected, Arrays.draw(expected))
        for other in others:
            assert same_bits(attend(other, Arrays.draw(other)), out)


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=12, deadline=None)
@given(mix=mixes(max_qo_len=12))
def test_every_row_has_the_bits_that_it_has_alone(variant: str, mix: Mix) -> None:
    arrays = Arrays.draw(mix)
    with machine(variant=variant, threads=2):
        assert same_bits(attend(mix, arrays), attend_alone(mix, arrays))


@pytest.mark.parametrize("head_dim", [8, 40, 64, 80, 128, 256])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_head_dim_that_is_a_multiple_of_8(
    head_dim: int, dtype: torch.dtype, layout: KVLayout
) -> None:
    requests = (Request(qo_len=1, start=300), Request(qo_len=50, start=101))
    mix = Mix(requests=requests, head_dim=head_dim, dtype=dtype, layout=layout)
    arrays = Arrays.draw(mix)
    for variant in VARIANTS:
        with machine(variant=variant):
            out = attend(mix, arrays).double().numpy()
        np.testing.assert_allclose(out, truth(mix, arrays), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("num_kv_heads", "group"), [(9, 1), (3, 3), (2, 8), (1, 71)])
def test_any_ratio_of_heads(num_kv_heads: int, group: int) -> None:
    requests = (Request(qo_len=1, start=200), Request(qo_len=1, start=190, parent=0, shared=160))
    mix = Mix(
        requests=(*requests, Request(qo_len=70, start=0)), num_kv_heads=num_kv_heads, group=group
    )
    arrays = Arrays.draw(mix)

    out = attend(mix, arrays)

    np.testing.assert_allclose(out.double().numpy(), truth(mix, arrays), rtol=2e-5, atol=2e-5)
    assert same_bits(out, attend_alone(mix, arrays))


def test_a_prompt_of_many_tiles_has_the_bits_of_its_chunks() -> None:
    whole = Mix(requests=(Request(qo_len=300, start=0),), head_dim=64)
    arrays = Arrays.draw(whole)
    chunk = replace(whole, requests=(Request(qo_len=43, start=257),))
    chunk.tables[:] = whole.tables
    part = Arrays(arrays.q[257:], arrays.pool)

    assert same_bits(attend(whole, arrays)[257:], attend(chunk, part))


def test_a_long_request_is_split_over_threads_without_changing_a_bit() -> None:
    mix = decodes(3000)
    arrays = Arrays.draw(mix)
    plan = kernels.AttentionPlan()
    with machine(threads=2):
        set_plan(plan, mix)
        split = attend(mix, arrays)
    assert 8 <= plan.num_stored_items < 3001 // 128

    with machine(threads=1):
        set_plan(plan, mix)
        whole = attend(mix, arrays)
    assert plan.num_stored_items == 0
    assert same_bits(split, whole)


@pytest.mark.parametrize("block_size", [1, 16, 128, 200])
def test_chunks_in_the_same_blocks_are_found(block_size: int) -> None:
    mix = decodes(420, 420, 420, shared=400, block_size=block_size)
    plan = kernels.AttentionPlan()
    set_plan(plan, mix)
    shared_tokens = 400 // block_size * block_size

    assert plan.num_shared_chunks == shared_tokens // 128


def test_nothing_is_looked_for_with_sharing_off() -> None:
    plan = kernels.AttentionPlan(share=False)
    set_plan(plan, decodes(420, 420, shared=400))

    assert plan.num_shared_chunks == 0


def test_every_level_of_a_tree_of_prefixes_is_shared() -> None:
    requests = [Request(qo_len=1, start=300)]
    requests += [Request(qo_len=1, start=300, parent=0, shared=128) for _ in range(2)]
    requests += [Request(qo_len=1, start=300, parent=parent, shared=256) for parent in (0, 1)]
    mix = Mix(requests=tuple(requests))
    arrays = Arrays.draw(mix)
    plan = kernels.AttentionPlan()
    set_plan(plan, mix)

    assert plan.num_shared_chunks == 3  # all five at first; then two pairs and one by itself
    assert same_bits(attend(mix, arrays), attend(mix, arrays, share=False))


def test_partial_results_that_would_not_fit_are_not_stored() -> None:
    mix = decodes(*[17_000] * 32, shared=17_000, num_kv_heads=32, group=1, head_dim=8)
    arrays = Arrays.draw(mix)
    plan = kernels.AttentionPlan()
    set_plan(plan, mix)

    assert plan.num_shared_chunks == 2**17 // (32 * 32) < 17_000 // 128
    assert same_bits(attend(mix, arrays)[::9], attend(mix, arrays, share=False)[::9])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_nan_is_seen_only_by_the_rows_that_see_its_token(variant: str, layout: KVLayout) -> None:
    mix = Mix(requests=(Request(qo_len=40, start=100),), layout=layout)
    arrays = Arrays.draw(mix)
    with machine(variant=variant):
        clean = attend(mix, arrays)
        place = divmod(int(mix.slots(0)[120]), mix.block_size)
        for half in (arrays.pool.k, arrays.pool.v):
            kept = half.clone()
            half[place][1] = torch.nan
            out = attend(mix, arrays)
            half.copy_(kept)
            assert same_bits(out[:20], clean[:20])
            assert same_bits(out[:, :3], clean[:, :3])
            assert out[20:, 3:].isnan().all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_scores_of_minus_infinity_are_hidden_and_nothing_but_them_is_nan(variant: str) -> None:
    mix = Mix(requests=(Request(qo_len=2, start=130),), num_kv_heads=1, group=1)
    arrays = Arrays.draw(mix)
    arrays.q.fill_(1.0)
    keys = arrays.pool.k.view(-1, 16)
    keys[torch.from_numpy(mix.slots(0))[:131]] = -torch.inf
    last = int(mix.slots(0)[131])
    with machine(variant=variant):
        out = attend(mix, arrays)

    assert out[0].isnan().all()
    torch.testing.assert_close(out[1, 0], arrays.pool.v.view(-1, 16)[last], rtol=0, atol=0)


def test_large_scores_do_not_overflow() -> None:
    mix = Mix(requests=(Request(qo_len=3, start=500),))
    arrays = Arrays.draw(mix)
    arrays.q.mul_(300.0)

    out = attend(mix, arrays).double().numpy()

    np.testing.assert_allclose(out, truth(mix, arrays), rtol=1e-3, atol=1e-3)
