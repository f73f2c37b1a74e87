"""``POST /v1/score``: how likely each of some options is after one prompt.

    {"prompt": "The capital of France is", "options": [" Paris", " Rome"], "normalization": "mean"}

Text becomes tokens as it would in one piece: where encode(prompt + option) begins with
encode(prompt), an option's tokens are the rest of it; else they are encode(option).
"""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from radixserve.server.protocol.body import INT32_MAX, RequestBody
from radixserve.server.protocol.fields import TokenIds, parse_body

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.engine.info import ModelInfo
    from radixserve.engine.scoring import OptionScore

MAX_OPTIONS = 256


class Normalization(enum.StrEnum):
    """What an option's log-probability is divided by before options are compared."""

    SUM = "sum"
    """By nothing."""
    MEAN = "mean"
    """By its tokens."""
    BYTES = "bytes"
    """By the bytes of its text in UTF-8."""


def _branch_of_text(value: Any) -> str | None:
    if isinstance(value, str):
        return "<text>"
    return "<ids>" if isinstance(value, list) else None


TextOrIds = Annotated[
    Annotated[str, Tag("<text>"), Field(min_length=1)]
    | Annotated[TokenIds, Tag("<ids>"), Field(min_length=1)],
    Discriminator(
        _branch_of_text,
        custom_error_type="text_type",
        custom_error_message="Input should be a string or a list of token ids",
    ),
]


def _named(value: Any) -> Any:
    """Let a JSON string name a member: strict models take nothing but the member itself."""
    known = isinstance(value, str) and value in Normalization.__members__.values()
    if not known:
        raise PydanticCustomError("enum", "Input should be one of sum, mean, bytes")
    return Normalization(value)


class ScoreRequest(RequestBody):
    """One call of ``POST /v1/score``."""

    model: str | None = None
    """The served model when left out."""
    prompt: TextOrIds
    options: Annotated[list[TextOrIds], Field(min_length=1, max_length=MAX_OPTIONS, fail_fast=True)]
    normalization: Annotated[Normalization, BeforeValidator(_named)] = Normalization.SUM
    add_special_tokens: bool = True
    """Whether the tokenizer may add its begin-of-sequence token to a prompt's text."""
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """Requests share cached prefixes only with requests of the same salt."""
    priority: Annotated[int, Field(ge=-INT32_MAX, le=INT32_MAX)] = 0
    """Higher goes first."""
    timeout_s: Annotated[float, Field(gt=0, le=86_400)] | None = None
    user: Annotated[str, Field(max_length=1024)] | None = None
    """Whom the work is counted for by the scheduling policy `fair`."""

    @property
    def text_len(self) -> int:
        """Characters of all texts."""
        return sum(len(text) for text in (self.prompt, *self.options) if isinstance(text, str))


def parse_score(body: Any, *, ignore_unknown: bool = False) -> ScoreRequest:
    """Return the typed request; see `parse_body` for what it raises."""
    return parse_body(body, ScoreRequest, {}, ignore_unknown=ignore_unknown)


def score_json(
    scores: Sequence[OptionScore],
    texts: Sequence[str],
    normalization: Normalization,
    info: ModelInfo,
    *,
    answer_id: str,
    created: int,
) -> dict[str, Any]:
    """Return the answer.

    Args:
        texts: Of the options.
        created: Seconds since 1970.
    """
    values = [
        score.logprob / _divisor(score, text, normalization)
        for score, text in zip(scores, texts, strict=True)
    ]
    options = [
        _option_json(index, text, score, value, probability)
        for index, (text, score, value, probability) in enumerate(
            zip(texts, scores, values, _softmax(values), strict=True)
        )
    ]
    return {
        "id": answer_id,
        "object": "score",
        "created": created,
        "model": info.name,
        "normalization": normalization.value,
        "options": options,
        "best": max(range(len(values)), key=values.__getitem__),
        "usage": _usage_json(scores),
    }


def _option_json(
    index: int, text: str, score: OptionScore, value: float, probability: float
) -> dict[str, Any]:
    return {
        "index": index,
        "text": text,
        "token_ids": [token.token_id for token in score.tokens],
        "token_logprobs": [token.logprob for token in score.tokens],
        "logprob": score.logprob,
        "mean_logprob": score.logprob / len(score.tokens),
        "score": value,
        "probability": probability,
        "is_greedy": score.is_greedy,
        "prompt_tokens": score.usage.prompt_tokens,
        "cached_tokens": score.usage.cached_tokens,
    }


def _divisor(score: OptionScore, text: str, normalization: Normalization) -> int:
    if normalization is Normalization.MEAN:
        return len(score.tokens)
    return max(1, len(text.encode())) if normalization is Normalization.BYTES else 1


def _softmax(values: Sequence[float]) -> list[float]:
    """Return the options' share of probability among themselves."""
    best = max(values)
    weights = [math.exp(value - best) for value in values]
    total = sum(weights)
    return [weight / total for weight in weights]


def _usage_json(scores: Sequence[OptionScore]) -> dict[str, Any]:
    """Return the usage of the whole call: the prompt of each option's request, and no output.

    What they have in common counts as cached for all but the first.
    """
    prompt = sum(score.usage.prompt_tokens for score in scores)
    cached = sum(score.usage.cached_tokens for score in scores)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": 0,
        "total_tokens": prompt,
        "prompt_tokens_details": {"cached_tokens": cached, "computed_tokens": prompt - cached},
    }
