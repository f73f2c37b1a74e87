"""The fields of a beam search, and what it cannot be combined with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from radixserve.server.protocol.refusal import refusal

if TYPE_CHECKING:
    from radixserve.server.protocol.fields import GenerationFields

MAX_BEAM_WIDTH = 64

_NEUTRAL = {"length_penalty": 1.0, "early_stopping": False}
"""The fields that only a beam search reads, with the values that ask for nothing."""

_NOT_COMBINED = (
    "logprobs",
    "prompt_logprobs",
    "best_of",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "stop",
)
"""They change what is likely, or tell of it token by token: the search would ignore them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamOptions:
    """How to search.

    Attributes:
        width: Hypotheses kept at each step.
        length_penalty: A hypothesis is worth its log-probability over its length to this power.
        early_stopping: True ends as soon as `width` hypotheses are finished; False when it is
            unlikely that a better one is found; "never" when it is impossible.
    """

    width: int
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False


def check_beam(fields: GenerationFields) -> None:
    """Refuse what a search would have to ignore, and a search's options without a search.

    Raises:
        InvalidRequestError: names the field.
    """
    beam = fields.beam
    if beam is None:
        for name, neutral in _NEUTRAL.items():
            if getattr(fields, name) != neutral:
                raise refusal(f"{name}: only allowed with use_beam_search.", name)
        return
    if fields.n > beam.width:
        raise refusal(f"n: at most beam_width ({beam.width}) choices; got {fields.n}.", "n")
    for name, _ in fields.grammar_specs():
        raise refusal(f"{name}: not allowed with use_beam_search.", name)
    for name in _NOT_COMBINED:
        if not _is_default(fields, name):
            raise refusal(f"{name}: not allowed with use_beam_search.", name)


def _is_default(fields: GenerationFields, name: str) -> bool:
    field = type(fields).model_fields.get(name)
    if field is None:
        return True
    default = field.get_default(call_default_factory=True, validated_data={})
    return bool(getattr(fields, name) == default)
