from __future__ import annotations

import math

import pytest
import torch

from radixserve.attention.merge import Partial, attend, merge


def draw(num_rows: int, num_heads: int, *, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, num_heads, 8, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("split", [0, 1, 5, 9])
def test_two_parts_merge_into_the_whole(split: int) -> None:
    q, k, v = draw(3, 4), draw(9, 2, seed=1), draw(9, 2, seed=2)

    whole = attend(q, k, v, scale=0.3, causal=False)
    parts = [
        attend(q, k[part], v[part], scale=0.3, causal=False)
        for part in (slice(None, split), slice(split, None))
    ]

    torch.testing.assert_close(merge(*parts).out, whole.out, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(merge(*parts).lse, whole.lse, rtol=1e-12, atol=1e-12)


def test_a_part_without_keys_is_zero_and_minus_infinity() -> None:
    part = attend(draw(2, 2), draw(0, 2), draw(0, 2), scale=1.0, causal=False)

    assert torch.equal(part.out, torch.zeros(2, 2, 8, dtype=torch.float64))
    assert torch.equal(part.lse, torch.full((2, 2), -math.inf, dtype=torch.float64))


def test_two_parts_without_keys_are_not_nan() -> None:
    part = Partial(torch.zeros(1, 1, 8), torch.full((1, 1), -math.inf))

    merged = merge(part, part)

    assert torch.equal(merged.out, part.out)
    assert torch.equal(merged.lse, part.lse)


def test_the_logarithm_is_of_base_two() -> None:
    keys = torch.zeros(8, 1, 8)

    assert attend(torch.ones(1, 1, 8), keys, keys, scale=1.0, causal=False).lse.item() == 3.0


def test_causal_hides_the_keys_after_a_row_from_it() -> None:
    v = torch.stack([torch.full((1, 8), float(i)) for i in range(4)])

    out = attend(torch.zeros(2, 1, 8), torch.zeros(4, 1, 8), v, scale=1.0, causal=True).out

    assert out[:, 0, 0].tolist() == pytest.approx([1.0, 1.5])  # means of 0..2 and of 0..3


def test_far_apart_sums_neither_overflow_nor_vanish() -> None:
    big = Partial(torch.ones(1, 1, 8), torch.full((1, 1), 4000.0))
    small = Partial(torch.zeros(1, 1, 8), torch.full((1, 1), -4000.0))

    assert torch.equal(merge(big, small).out, big.out)
    assert torch.equal(merge(small, big).lse, big.lse)
