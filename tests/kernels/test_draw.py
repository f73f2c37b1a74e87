"""`draw` against a plain reading of its rules, in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve import kernels
from radixserve.kernels import NOT_FINITE, NOTHING_LEFT, DrawRules, View, draw
from tests.kernels.machines import VARIANTS, machine

if TYPE_CHECKING:
    from numpy.typing import NDArray

if not kernels.is_available():
    pytest.skip(kernels.why_not(), allow_module_level=True)

INF, NAN = float("inf"), float("nan")


def draw_ids(
    logits: NDArray[np.float32], *, limit: int | None = None, **rules: Any
) -> NDArray[np.int64]:
    """Draw one id a row; every rule is one value for all rows, or one a row."""
    rows = len(logits)
    plain: dict[str, Any] = {"temperature": 1.0, "min_p": 0.0, "top_k": 0, "top_p": 1.0, "u": 0.5}
    dtypes = {"temperature": np.float32, "min_p": np.float32, "top_k": np.int64}
    views = {
        name: View(np.full(rows, value, dtype=dtypes.get(name, np.float64)))
        for name, value in (plain | rules).items()
    }
    ids = np.full(rows, -9, dtype=np.int64)
    draw(
        View(logits),
        rows=rows,
        limit=logits.shape[1] if limit is None else limit,
        rules=DrawRules(**views),
        out_ids=View(ids),
    )
    return ids


def survivors(weights: NDArray[np.float64], min_p: float, top_k: int, top_p: float) -> list[int]:
    """Return the ids that the rules leave, ascending."""
    ids = [i for i in range(len(weights)) if weights[i] >= min_p]
    ids.sort(key=lambda i: (-weights[i], i))
    ids = ids[:top_k] if top_k else ids
    mass = np.cumsum(weights[ids])
    if top_p < 1:
        ids = ids[: int(np.searchsorted(mass, top_p * mass[-1])) + 1]
    return sorted(ids)


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    size=st.integers(1, 700),
    top_k=st.integers(0, 40),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.01, 0.3]),
    temperature=st.sampled_from([0.3, 1.0, 4.0]),
    u=st.floats(0, 1, exclude_max=True),
)
def test_what_is_drawn_is_what_the_rules_say(
    variant: str,
    seed: int,
    size: int,
    top_k: int,
    top_p: float,
    min_p: float,
    temperature: float,
    u: float,
) -> None:
    logits = np.random.default_rng(seed).normal(size=(1, size), scale=3).astype(np.float32)
    with machine(variant=variant):
        (drawn,) = draw_ids(
            logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, u=u
        )
    weights = np.exp((logits[0] - logits[0].max()).astype(np.float64) / temperature)
    # To rounding, a bound of min_p or of top_p may fall on either side of a weight.
    for slack in (1e-5, -1e-5, 0.0):
        ids = survivors(weights, min_p * (1 + slack), top_k, min(top_p * (1 + slack), top_p or 1))
        mass = np.cumsum(weights[ids])
        if drawn not in ids:
            continue
        at = ids.index(int(drawn))
        before = mass[at - 1] if at else 0.0
        if before / mass[-1] - 1e-5 <= u <= mass[at] / mass[-1] + 1e-5:
            return
    pytest.fail(f"{drawn} is not what the rules leave at {u}")


@pytest.mark.parametrize("variant", VARIANTS)
def test_equal_weights_go_to_the_lower_id(variant: str) -> None:
    logits = np.zeros((3, 5000), dtype=np.float32)
    with machine(variant=variant):
        assert draw_ids(logits, top_k=1).tolist() == [0, 0, 0]
        assert draw_ids(logits, top_k=4, u=[0.0, 0.5, 0.99]).tolist() == [0, 2, 3]
        assert draw_ids(logits, top_p=0.001, u=[0.0, 0.5, 0.99]).tolist() == [0, 2, 4]
        assert draw_ids(logits, u=[0.0, 0.5, 0.9999]).tolist() == [0, 2500, 4999]


@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_rows_take_the_first_of_the_largest(variant: str) -> None:
    logits = np.zeros((4, 49152), dtype=np.float32)
    places = [0, 31, 1000, 49151]
    for row, place in enumerate(places):
        logits[row, place] = logits[row, -1] = 5
    with machine(variant=variant):
        assert draw_ids(logits, temperature=0.0).tolist() == places


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_cannot_be_drawn_from_says_why_and_fails_alone(temperature: float) -> None:
    rows = [[0, NAN, 1], [0, INF, 1], [-INF, -INF, -INF], [-INF, 2, -INF]]
    logits = np.array(rows, dtype=np.float32)
    wanted = [NOT_FINITE, NOT_FINITE, NOTHING_LEFT, 1]
    assert draw_ids(logits, temperature=temperature).tolist() == wanted


def test_a_row_is_drawn_alike_alone_and_on_any_number_of_threads() -> None:
    logits = np.random.default_rng(0).normal(size=(9, 3000)).astype(np.float32)
    u = np.random.default_rng(1).random(9)
    rules: dict[str, Any] = {
        "top_p": np.where(np.arange(9) % 2, 0.9, 1.0),
        "top_k": np.arange(9) % 3 * 50,
    }
    with machine(threads=2):
        together = draw_ids(logits, u=u, **rules)
    with machine(threads=1):
        for i in range(9):
            one: dict[str, Any] = {name: value[i : i + 1] for name, value in rules.items()}
            assert draw_ids(logits[i : i + 1], u=u[i], **one)[0] == together[i]


def test_ids_beyond_the_limit_are_not_looked_at() -> None:
    logits = np.array([[0.0, 1.0, 9.0, NAN]], dtype=np.float32)
    assert draw_ids(logits, limit=2, temperature=0.0).tolist() == [1]


@pytest.mark.parametrize(
    ("rows", "limit", "message"),
    [
        (3, 4, "3 rows asked for"),
        (-1, 4, "-1 rows asked for"),
        (2, 5, "limit must be 1 to 4"),
        (2, 0, "limit must be 1 to 4, got 0"),
    ],
)
def test_draw_refuses_what_is_not_there(rows: int, limit: int, message: str) -> None:
    logits, ids = np.zeros((2, 4), dtype=np.float32), np.zeros(2, dtype=np.int64)
    floats, doubles = np.zeros(2, dtype=np.float32), np.zeros(2)
    rules = DrawRules(View(floats), View(floats), View(ids), View(doubles), View(doubles))
    with pytest.raises(ValueError, match=message):
        draw(View(logits), rows=rows, limit=limit, rules=rules, out_ids=View(ids))
