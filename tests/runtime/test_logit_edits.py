from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from radixserve.core.plan import SamplingState
from radixserve.runtime.logit_edits import edit_logits, has_edits
from radixserve.types import SamplingParams, pack_ids


def make_state(
    *,
    prompt: tuple[int, ...] = (),
    output: tuple[int, ...] = (),
    output_len: int | None = None,
    **params: Any,
) -> SamplingState:
    length = len(output) if output_len is None else output_len
    return SamplingState(SamplingParams(**params), length, pack_ids(prompt), pack_ids(output))


def edited(logits: list[float], state: SamplingState) -> list[float]:
    return [float(x) for x in edit_logits(np.array(logits, dtype=np.float32), state)]


def test_repetition_divides_positive_and_multiplies_negative_logits_once_a_token() -> None:
    state = make_state(prompt=(0, 0, 1), output=(2, 0), repetition_penalty=2.0)

    assert edited([4.0, -4.0, 1.0, 3.0], state) == [2.0, -8.0, 0.5, 3.0]


def test_presence_counts_an_output_token_once_and_frequency_each_time() -> None:
    state = make_state(output=(1, 1, 2), presence_penalty=1.0, frequency_penalty=0.25)

    assert edited([5.0, 5.0, 5.0], state) == [5.0, 3.5, 3.75]


def test_presence_and_frequency_do_not_look_at_the_prompt() -> None:
    state = make_state(prompt=(0, 1), presence_penalty=1.0, frequency_penalty=1.0)

    assert edited([5.0, 5.0], state) == [5.0, 5.0]


def test_negative_penalties_favour_what_was_there() -> None:
    state = make_state(output=(1,), presence_penalty=-1.0, frequency_penalty=-0.5)

    assert edited([5.0, 5.0], state) == [5.0, 6.5]


def test_a_bias_is_added_after_the_penalties() -> None:
    state = make_state(prompt=(0,), repetition_penalty=2.0, logit_bias=((0, 1.5), (1, -100.0)))

    assert edited([4.0, 3.0], state) == [3.5, -97.0]


@pytest.mark.parametrize(("output_len", "is_held"), [(0, True), (19, True), (20, False)])
def test_every_stop_id_is_held_back_until_min_tokens(output_len: int, is_held: bool) -> None:
    stops = frozenset({0, 2, 3})
    state = make_state(output_len=output_len, min_tokens=20, stop_token_ids=stops)

    assert has_edits(state) == is_held
    if is_held:
        assert edited([1.0] * 5, state) == [-np.inf, 1.0, -np.inf, -np.inf, 1.0]


def test_no_bias_lifts_a_stop_id_that_is_held_back() -> None:
    state = make_state(min_tokens=1, stop_token_ids=frozenset({1}), logit_bias=((1, 100.0),))

    assert edited([1.0, 1.0], state) == [1.0, -np.inf]


def test_ids_beyond_the_row_are_left_out() -> None:
    state = make_state(
        prompt=(7, 0),
        output=(9,),
        repetition_penalty=2.0,
        presence_penalty=1.0,
        logit_bias=((8, 1.0),),
        min_tokens=5,
        stop_token_ids=frozenset({6}),
    )

    assert edited([4.0, 3.0], state) == [2.0, 3.0]


def test_the_row_given_is_not_changed() -> None:
    row = np.array([1.0, 2.0], dtype=np.float32)

    edit_logits(row, make_state(logit_bias=((0, 5.0),)))

    assert row.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("params", [{}, {"temperature": 0.0}, {"min_tokens": 3}, {"top_k": 5}])
def test_plain_parameters_need_no_edit(params: dict[str, Any]) -> None:
    assert not has_edits(make_state(**params))
