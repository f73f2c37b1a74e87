"""The best cache's count of computed tokens, against all orders tried one by one."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.programs.optimum import least_computed

if TYPE_CHECKING:
    from collections.abc import Sequence

Call = tuple[tuple[int, ...], tuple[int, ...]]

prompts = st.lists(st.integers(0, 2), min_size=1, max_size=5).map(tuple)
outputs = st.lists(st.integers(0, 2), max_size=3).map(tuple)
calls = st.lists(st.tuples(prompts, outputs), min_size=1, max_size=5)


def computed_in_order(calls: Sequence[Call]) -> int:
    """Serve the calls one after the other from a cache without end."""
    held: set[tuple[int, ...]] = set()
    total = 0
    for prompt, output in calls:
        usable = [n for n in range(len(prompt)) if prompt[:n] in held or n == 0]
        total += len(prompt) - max(usable)
        whole = prompt + output
        held.update(whole[:n] for n in range(1, len(whole) + 1))
    return total


@given(calls)
def test_no_order_computes_less(calls: list[Call]) -> None:
    fewest = min(computed_in_order(order) for order in permutations(calls))

    assert least_computed(calls) <= fewest


@given(st.lists(prompts, min_size=1, max_size=5))
def test_without_outputs_some_order_reaches_it(prompts: list[tuple[int, ...]]) -> None:
    calls: list[Call] = [(prompt, ()) for prompt in prompts]
    fewest = min(computed_in_order(order) for order in permutations(calls))

    assert least_computed(calls) == fewest


def test_a_turn_that_goes_on_from_an_output_pays_its_own_tokens_only() -> None:
    first: Call = ((1, 2, 3), (4, 5))
    second: Call = ((1, 2, 3, 4, 5, 6, 7), ())

    assert least_computed([first, second]) == 3 + 2


def test_equal_prompts_compute_their_last_token_each() -> None:
    assert least_computed([((1, 2, 3), ()), ((1, 2, 3), ())]) == 3 + 1
