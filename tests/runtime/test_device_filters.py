"""Both ways of finding what top_k and top_p keep, against a plain sort of one row."""

from __future__ import annotations

import math
from itertools import accumulate

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from radixserve.runtime.device_filters import MAX_NARROW, SPAN, keep_narrow, keep_wide

GRAIN = 2.0**-10
"""Weights that are multiples of it have sums that are exact, whatever the order."""


@st.composite
def rows_of_weights(draw: st.DrawFn) -> torch.Tensor:
    """A few rows of weights, [S, num_spans * SPAN], each with a 1 in it, most with many equals."""
    num_rows, num_spans = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    size = (num_rows, num_spans * SPAN)
    kind = draw(st.sampled_from(["few values", "grains", "any", "tiny"]))
    if kind == "few values":
        weights = torch.randint(0, 4, size, generator=generator) / 4
    elif kind == "grains":
        weights = torch.randint(0, 1024, size, generator=generator) * GRAIN
    elif kind == "any":
        weights = torch.randn(size, generator=generator).mul(9).sub(30).exp().clamp(max=1)
    else:  # down to the least that a float32 can be
        weights = torch.randint(0, 3, size, generator=generator) * 1e-45
    weights[:, -draw(st.integers(1, SPAN - 1)) :] = 0.0  # beyond the vocabulary
    weights[:, draw(st.integers(0, SPAN)) :: SPAN] = 0.0
    weights[:, 0] = 1.0
    return weights


def kept_of(row: torch.Tensor, top_k: float, top_p: float) -> torch.Tensor:
    """Return one row as a plain reading of the filters leaves it; for top_p its sums are exact."""
    values = row.tolist()
    ranked = sorted(range(len(values)), key=lambda i: (-values[i], i))
    ranked = ranked[: int(min(top_k, len(ranked)))]
    if top_p < math.inf:
        mass = list(accumulate(values[i] for i in ranked))
        target = top_p * mass[-1]
        ranked = ranked[: 1 + next(place for place, sum_ in enumerate(mass) if sum_ >= target)]
    kept = torch.zeros_like(row)
    kept[ranked] = row[ranked]
    return kept


def column(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


TOP_K = st.sampled_from([1, 2, 5, 300, 1023, MAX_NARROW])


@given(rows_of_weights(), st.data())
def test_top_k_alone_is_the_same_to_the_bit_in_both_ways(
    weights: torch.Tensor, data: st.DataObject
) -> None:
    tops = [float(data.draw(TOP_K)) for _ in weights]
    narrow, wide = weights.clone(), weights.clone()

    keep_narrow(narrow, column(tops), None, largest=int(max(tops)))
    keep_wide(wide, column(tops), None)

    expected = torch.stack([kept_of(w, k, math.inf) for w, k in zip(weights, tops, strict=True)])
    assert torch.equal(narrow, expected)
    assert torch.equal(wide, expected)


@given(rows_of_weights(), st.data())
def test_what_is_off_drops_nothing(weights: torch.Tensor, data: st.DataObject) -> None:
    tops = column([data.draw(st.sampled_from([1.0, math.inf])) for _ in weights])
    by_k, by_p = weights.clone(), weights.clone()

    keep_wide(by_k, tops, None)
    keep_wide(by_p, None, torch.where(tops == 1.0, 0.5, math.inf))

    off = tops[:, 0] == math.inf
    assert torch.equal(by_k[off], weights[off])
    assert torch.equal(by_p[off], weights[off])


TOP_P = st.sampled_from([0.0, 0.25, 0.5, 0.75, math.nextafter(1.0, 0.0)]) | st.floats(
    0, 1, exclude_max=True
)


@example(seed=0, rows=[(1, 0.0), (1024, math.nextafter(1.0, 0.0))], levels=1)
@given(
    seed=st.integers(0, 10_000),
    rows=st.lists(st.tuples(TOP_K, TOP_P), min_size=1, max_size=4),
    levels=st.sampled_from([1, 3, 1023]),
)
def test_both_filters_keep_what_a_plain_reading_keeps_where_no_sum_rounds(
    seed: int, rows: list[tuple[int, float]], levels: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    size = (len(rows), 5 * SPAN)
    weights = torch.randint(0, levels + 1, size, generator=generator) * GRAIN
    weights[:, seed % (5 * SPAN)] = 1.0
    top_k, top_p = [float(k) for k, _ in rows], [p for _, p in rows]
    narrow, wide, by_p = weights.clone(), weights.clone(), weights.clone()

    keep_narrow(narrow, column(top_k), column(top_p), largest=int(max(top_k)))
    keep_wide(wide, column(top_k), column(top_p))
    keep_wide(by_p, None, column(top_p))

    for row, (k, p) in enumerate(rows):
        assert torch.equal(narrow[row], kept_of(weights[row], k, p))
        assert torch.equal(wide[row], kept_of(weights[row], k, p))
        assert torch.equal(by_p[row], kept_of(weights[row], math.inf, p))


@pytest.mark.parametrize(("top_p", "num_kept"), [(0.0, 1), (0.5, 1), (0.75, 2), (0.8, 3), (0.9, 4)])
def test_a_sum_that_is_the_target_to_the_bit_needs_no_further_weight(
    top_p: float, num_kept: int
) -> None:
    weights = torch.zeros(1, SPAN)
    weights[0, :4] = torch.tensor([1.0, 0.5, 0.25, 0.25])
    expected = weights.clone()
    expected[0, num_kept:] = 0.0
    narrow, wide = weights.clone(), weights.clone()

    keep_narrow(narrow, column([9.0]), column([top_p]), largest=9)
    keep_wide(wide, None, column([top_p]))

    assert torch.equal(narrow, expected)
    assert torch.equal(wide, expected)
