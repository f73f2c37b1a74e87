"""From the fields of a request and the model's limits to the engine's sampling parameters."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from radixserve.errors import PromptTooLongError
from radixserve.server.protocol.body import INT32_MAX
from radixserve.server.protocol.refusal import INVALID_TYPE, refusal
from radixserve.types import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from radixserve.server.protocol.fields import GenerationFields
    from radixserve.text.tokenizer import Tokenizer

MAX_LOGIT_BIAS = 100.0
_MAX_ID_DIGITS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimits:
    """What the served model bounds.

    Attributes:
        context_len: Most tokens of prompt and output together.
        vocab_size: Token ids are below it.
    """

    context_len: int
    vocab_size: int


def sampling_params_of(
    fields: GenerationFields,
    limits: ModelLimits,
    *,
    bad_words: tuple[tuple[int, ...], ...] = (),
) -> SamplingParams:
    """Return the sampling parameters that all prompts of a call share; see `with_output_len`.

    Args:
        bad_words: The field's words as tokens: see `bad_word_ids`.
    Raises:
        InvalidRequestError: a field names what is not in the vocabulary.
    """
    check_token_ids(fields.stop_token_ids, limits, "stop_token_ids")
    allowed = fields.allowed_token_ids
    if allowed is not None:
        check_token_ids(allowed, limits, "allowed_token_ids")
    return SamplingParams(
        temperature=fields.temperature,
        top_k=min(max(fields.top_k, 0), limits.vocab_size),
        top_p=fields.top_p,
        min_p=fields.min_p,
        seed=fields.seed,
        repetition_penalty=fields.repetition_penalty,
        presence_penalty=fields.presence_penalty,
        frequency_penalty=fields.frequency_penalty,
        logit_bias=logit_bias_of(fields.logit_bias, limits),
        min_tokens=fields.min_tokens,
        stop_token_ids=frozenset(fields.stop_token_ids),
        allowed_token_ids=None if allowed is None else frozenset(allowed),
        bad_words=bad_words,
        logprobs=_num_logprobs(fields),
        prompt_logprobs=_larger(fields.num_echo_logprobs, fields.prompt_logprobs),
        prompt_logprobs_start=(
            fields.prompt_logprob_start if fields.num_echo_logprobs is None else 0
        ),
    )


def _num_logprobs(fields: GenerationFields) -> int | None:
    """Those that are told, or none but the token's own where the best outputs are to be found."""
    is_contest = fields.num_siblings > fields.n
    return 0 if fields.num_logprobs is None and is_contest else fields.num_logprobs


def _larger(one: int | None, other: int | None) -> int | None:
    counts = [count for count in (one, other) if count is not None]
    return max(counts, default=None)


def of_sibling(params: SamplingParams, place: int) -> SamplingParams:
    """Return the parameters of one of the sequences that continue the same prompt.

    Only the first tells of the prompt: for the others it would have to be computed again.
    """
    if place == 0:
        return params
    seed = None if params.seed is None else params.seed + place
    return dataclasses.replace(params, seed=seed, prompt_logprobs=None)


def bad_word_ids(words: Sequence[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Return the token sequences that spell the words, where a word begins and inside of one.

    Source: vllm, SamplingParams.update_from_tokenizer.
    """
    spellings = (
        tuple(tokenizer.encode(space + word.lstrip(), add_special_tokens=False))
        for word in words
        for space in ("", " ")
    )
    return tuple(dict.fromkeys(ids for ids in spellings if ids))


def with_output_len(params: SamplingParams, max_tokens: int) -> SamplingParams:
    """Return the parameters of one prompt.

    Args:
        max_tokens: Most output tokens, known to fit; see `output_len`.
    Raises:
        InvalidRequestError: fewer than `min_tokens`.
    """
    if params.min_tokens > max_tokens:
        raise refusal(
            f"min_tokens: {params.min_tokens} is more than the {max_tokens} output tokens allowed.",
            "min_tokens",
        )
    return dataclasses.replace(params, max_tokens=max_tokens)


def output_len(
    *, prompt_len: int, asked: int | None, default: int | None, limits: ModelLimits, param: str
) -> int:
    """Return the most output tokens of one prompt.

    Args:
        prompt_len: Tokens of the prompt.
        asked: What the caller asked for; a default never makes a request too long, this can.
        default: Output tokens when nothing was asked for; None takes the rest of the context.
        param: The field that holds the prompt.
    Raises:
        PromptTooLongError: prompt and output do not fit in the context.
    """
    room = limits.context_len - prompt_len
    if asked is None and room >= 1:
        return room if default is None else min(default, room)
    wanted = 1 if asked is None else asked
    if wanted <= room:
        return wanted
    raise PromptTooLongError(
        f"This model's context holds {limits.context_len} tokens, but the request asks for "
        f"{prompt_len + wanted}: {prompt_len} of the prompt and {wanted} of output. "
        "Shorten the prompt or lower max_tokens.",
        param=param if room < 1 else "max_tokens",
    )


def kept_len(
    truncate: int | None, *, asked: int | None, default: int | None, limits: ModelLimits
) -> int:
    """Return the most tokens of a prompt that are kept, from its end.

    Args:
        truncate: What the caller says; -1 leaves room for the output and no more, None keeps all.
        asked: Output tokens the caller asked for.
        default: Output tokens when nothing was asked for; None takes what is left, at least one.
    """
    if truncate is None:
        return INT32_MAX
    if truncate > 0:
        return truncate
    output = asked if asked is not None else default or 1
    return max(1, limits.context_len - output)


def check_token_ids(ids: Sequence[int], limits: ModelLimits, param: str) -> None:
    """Accept ids of the vocabulary.

    Raises:
        InvalidRequestError: an id is outside it. Complexity: O(n).
    """
    if not ids:
        return
    for worst in (max(ids), min(ids)):
        if not 0 <= worst < limits.vocab_size:
            raise refusal(
                f"{param}: token id {worst} is outside the vocabulary "
                f"(0 to {limits.vocab_size - 1}).",
                param,
            )


def logit_bias_of(given: Mapping[str, Any], limits: ModelLimits) -> tuple[tuple[int, float], ...]:
    """Return (token id, bias) pairs.

    Raises:
        InvalidRequestError: a key is no id of the vocabulary, or a value is outside -100 to 100.
    """
    return tuple((_bias_id(key, limits), _bias_value(key, value)) for key, value in given.items())


def _bias_id(key: str, limits: ModelLimits) -> int:
    if len(key) <= _MAX_ID_DIGITS and key.isascii() and key.isdigit():
        token_id = int(key)
        if str(token_id) == key and token_id < limits.vocab_size:
            return token_id
    raise refusal(
        f"logit_bias: the key {key[:32]!r} is not a token id of the vocabulary "
        f"(0 to {limits.vocab_size - 1}).",
        "logit_bias",
    )


def _bias_value(key: str, value: Any) -> float:
    param = f"logit_bias.{key}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise refusal(f"{param}: input should be a valid number.", param, INVALID_TYPE)
    if not math.isfinite(value) or abs(value) > MAX_LOGIT_BIAS:
        raise refusal(f"{param}: input should be from -100 to 100; got {value}.", param)
    return float(value)
