from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve import kernels
from radixserve.kernels import View, argmax
from tests.kernels.machines import VARIANTS, machine

if not kernels.is_available():
    pytest.skip(kernels.why_not(), allow_module_level=True)

FEW = (0.0, -0.0, 1.0, 2.5, -3.0, float("inf"), float("-inf"), float("nan"))


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=60)
@given(data=st.data(), width=st.integers(1, 90))
def test_argmax_is_numpys(variant: str, data: st.DataObject, width: int) -> None:
    values = st.lists(st.sampled_from(FEW), min_size=width, max_size=width)
    logits = np.array([data.draw(values) for _ in range(3)], dtype=np.float32)
    limit = data.draw(st.integers(1, width))
    ids, finite = np.full(3, -1), np.full(3, 7, dtype=np.uint8)
    with machine(variant=variant):
        argmax(View(logits), rows=2, limit=limit, out_ids=View(ids), out_finite=View(finite))
    wanted = logits[:2, :limit].argmax(axis=1)
    assert ids.tolist() == [*wanted, -1]
    assert finite.tolist() == [*np.isfinite(logits[[0, 1], wanted]), 7]


@pytest.mark.parametrize("place", [0, 1, 31, 32, 1000, 49151])
def test_the_first_of_equals_is_found_in_a_large_vocabulary(place: int) -> None:
    logits = np.zeros((1, 49152), dtype=np.float32)
    logits[0, place] = logits[0, -1] = 5
    ids, finite = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.uint8)
    argmax(View(logits), rows=1, limit=49152, out_ids=View(ids), out_finite=View(finite))
    assert (ids[0], finite[0]) == (place, 1)


@pytest.mark.parametrize(
    ("rows", "limit", "message"),
    [
        (3, 4, "3 rows asked for"),
        (-1, 4, "-1 rows asked for"),
        (2, 5, "limit must be 1 to 4"),
        (2, 0, "limit must be 1 to 4, got 0"),
    ],
)
def test_argmax_refuses_what_is_not_there(rows: int, limit: int, message: str) -> None:
    logits = np.zeros((2, 4), dtype=np.float32)
    ids, finite = np.zeros(2, dtype=np.int64), np.zeros(2, dtype=np.uint8)
    with pytest.raises(ValueError, match=message):
        argmax(View(logits), rows=rows, limit=limit, out_ids=View(ids), out_finite=View(finite))
