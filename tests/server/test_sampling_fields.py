"""A request's numbers against the model's limits: vocabulary, context, and one another."""

from __future__ import annotations

from typing import Any

import pytest

from radixserve.errors import InvalidRequestError, PromptTooLongError
from radixserve.server.protocol.completions import parse_completion
from radixserve.server.protocol.sampling import (
    ModelLimits,
    check_token_ids,
    output_len,
    sampling_params_of,
    with_output_len,
)

LIMITS = ModelLimits(context_len=100, vocab_size=50)


def test_fields_become_sampling_parameters() -> None:
    parsed = parse_completion(
        {
            "prompt": "a",
            "temperature": 0,
            "top_k": 1000,
            "seed": 7,
            "logit_bias": {"3": -100, "49": 1.5},
            "stop_token_ids": [4],
            "min_tokens": 2,
        }
    )
    params = with_output_len(sampling_params_of(parsed, LIMITS), 8)
    assert (params.temperature, params.top_k, params.seed) == (0, 50, 7)
    assert params.logit_bias == ((3, -100.0), (49, 1.5))
    assert (params.stop_token_ids, params.min_tokens, params.max_tokens) == (frozenset({4}), 2, 8)


def test_top_k_is_off_at_minus_one() -> None:
    assert sampling_params_of(parse_completion({"prompt": "a", "top_k": -1}), LIMITS).top_k == 0


@pytest.mark.parametrize(
    ("bias", "param"),
    [
        ({"50": 1}, "logit_bias"),
        ({"-1": 1}, "logit_bias"),
        ({"05": 1}, "logit_bias"),
        ({"+5": 1}, "logit_bias"),
        ({" 5": 1}, "logit_bias"),
        ({"\u0663": 1}, "logit_bias"),
        ({"hello": 1}, "logit_bias"),
        ({"9" * 5000: 1}, "logit_bias"),
        ({"5": 100.5}, "logit_bias.5"),
        ({"5": -101}, "logit_bias.5"),
        ({"5": "1"}, "logit_bias.5"),
        ({"5": True}, "logit_bias.5"),
        ({"5": None}, "logit_bias.5"),
    ],
)
def test_a_bad_logit_bias_is_refused(bias: dict[str, Any], param: str) -> None:
    parsed = parse_completion({"prompt": "a", "logit_bias": bias})
    with pytest.raises(InvalidRequestError) as refused:
        sampling_params_of(parsed, LIMITS)
    assert refused.value.param == param


def test_stop_tokens_must_be_in_the_vocabulary() -> None:
    parsed = parse_completion({"prompt": "a", "stop_token_ids": [50]})
    with pytest.raises(InvalidRequestError) as refused:
        sampling_params_of(parsed, LIMITS)
    assert refused.value.param == "stop_token_ids"


def test_more_least_tokens_than_most_tokens_is_refused() -> None:
    params = sampling_params_of(parse_completion({"prompt": "a", "min_tokens": 9}), LIMITS)
    with pytest.raises(InvalidRequestError) as refused:
        with_output_len(params, 8)
    assert refused.value.param == "min_tokens"


@pytest.mark.parametrize("ids", [[50], [1, 49, 2, 99], [-1]])
def test_token_ids_outside_the_vocabulary_are_refused(ids: list[int]) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        check_token_ids(ids, LIMITS, "prompt[3]")
    assert refused.value.param == "prompt[3]"


@pytest.mark.parametrize(
    ("prompt_len", "asked", "default", "expected"),
    [
        (10, None, 16, 16),
        (10, None, None, 90),
        (95, None, 16, 5),
        (99, None, None, 1),
        (10, 90, 16, 90),
    ],
)
def test_the_output_takes_what_was_asked_or_what_is_left(
    prompt_len: int, asked: int | None, default: int | None, expected: int
) -> None:
    chosen = output_len(
        prompt_len=prompt_len, asked=asked, default=default, limits=LIMITS, param="prompt"
    )
    assert chosen == expected


@pytest.mark.parametrize(
    ("prompt_len", "asked", "param"),
    [(10, 91, "max_tokens"), (100, None, "prompt"), (100, 1, "prompt"), (500, 5, "prompt")],
)
def test_what_does_not_fit_is_refused_with_the_numbers(
    prompt_len: int, asked: int | None, param: str
) -> None:
    with pytest.raises(PromptTooLongError) as refused:
        output_len(prompt_len=prompt_len, asked=asked, default=16, limits=LIMITS, param="prompt")
    assert (refused.value.param, refused.value.code) == (param, "context_length_exceeded")
    for number in (100, prompt_len, asked or 1):
        assert str(number) in refused.value.message
