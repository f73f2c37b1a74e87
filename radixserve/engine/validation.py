"""What is wrong with a request that came in process: each reason with the field's name.

The HTTP server has checked all this with its own words; here it protects the engine from a caller
in Python, where nothing else has.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from radixserve.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from radixserve.engine.request import GenerateRequest
    from radixserve.types import SamplingParams


def check_prompt(ids: Sequence[int], vocab_size: int) -> None:
    """Refuse an empty prompt and ids that the model does not have.

    Raises:
        InvalidRequestError: says which.
    """
    if not ids:
        raise InvalidRequestError("the prompt is empty", param="prompt")
    _check_ids(ids, vocab_size, "prompt")


def check_timeout(timeout_s: float | None) -> None:
    """Refuse a timeout that is not a positive number.

    Raises:
        InvalidRequestError: it is not.
    """
    is_good = timeout_s is None or 0 < timeout_s < math.inf
    _require(is_good, "timeout_s", "above 0", timeout_s)


def check_grammar(request: GenerateRequest, eos_token_ids: frozenset[int]) -> None:
    """Refuse a grammar for an output that has no way to end.

    Raises:
        InvalidRequestError: the end is ignored, or the model has none.
    """
    if request.params.grammar is None:
        return
    if request.ignore_eos:
        raise InvalidRequestError(
            "ignore_eos cannot be used with structured output, which ends where its grammar ends",
            param="ignore_eos",
        )
    if not eos_token_ids:
        raise InvalidRequestError("structured output needs a model with an end token")


def check_params(params: SamplingParams, vocab_size: int) -> None:
    """Refuse sampling parameters that have no meaning.

    Raises:
        InvalidRequestError: names the field and what it may be.
    """
    _require(params.max_tokens >= 1, "max_tokens", "at least 1", params.max_tokens)
    _require(
        0 <= params.min_tokens <= params.max_tokens,
        "min_tokens",
        f"from 0 to max_tokens ({params.max_tokens})",
        params.min_tokens,
    )
    temperature, penalty = params.temperature, params.repetition_penalty
    _require(0 <= temperature < math.inf, "temperature", "at least 0", temperature)
    _require(params.top_k >= 0, "top_k", "at least 0; 0 is off", params.top_k)
    _require(0 < params.top_p <= 1, "top_p", "above 0 and at most 1", params.top_p)
    _require(0 <= params.min_p <= 1, "min_p", "from 0 to 1", params.min_p)
    _require(0 < penalty < math.inf, "repetition_penalty", "above 0", penalty)
    for name in ("presence_penalty", "frequency_penalty"):
        value = getattr(params, name)
        _require(math.isfinite(value), name, "a finite number", value)
    _check_ids((token for token, _ in params.logit_bias), vocab_size, "logit_bias")
    _check_ids(params.stop_token_ids, vocab_size, "stop_token_ids")
    _check_masks(params, vocab_size)
    for name in ("logprobs", "prompt_logprobs"):
        count = getattr(params, name)
        _require(count is None or 0 <= count <= vocab_size, name, "at least 0", count)
    start = params.prompt_logprobs_start
    _require(start >= 0, "prompt_logprobs_start", "at least 0", start)


def _check_masks(params: SamplingParams, vocab_size: int) -> None:
    allowed = params.allowed_token_ids
    if allowed is not None:
        _require(bool(allowed), "allowed_token_ids", "not empty", allowed)
        _check_ids(allowed, vocab_size, "allowed_token_ids")
    for word in params.bad_words:
        _require(bool(word), "bad_words", "of one token or more each", word)
        _check_ids(word, vocab_size, "bad_words")


def _require(holds: bool, param: str, allowed: str, value: object) -> None:
    if not holds:
        raise InvalidRequestError(f"{param} must be {allowed}; got {value!r}", param=param)


def _check_ids(ids: Iterable[int], vocab_size: int, param: str) -> None:
    wrong = [token for token in ids if not 0 <= token < vocab_size]
    if wrong:
        raise InvalidRequestError(
            f"{param}: token ids must be from 0 to {vocab_size - 1}; got {wrong[0]}", param=param
        )
