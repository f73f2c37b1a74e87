"""Log-probabilities of options, read from prompts that were echoed with them.

    prompt "ab>>>"          tokens  ab | >>>        the edge is after >>>
    option "all"            tokens  ab | >>>all     its token takes the edge in

The server cuts each text into tokens by itself, so a token may reach over the edge between prompt
and option. All options are then scored from the place where the first of them begins to differ:
from >>> on, the prompt's own end counts for each of them in the same way.

Source: sgl-project/sglang#1257.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from radixserve.errors import BackendError, InvalidRequestError
from radixserve.frontend.backends.protocol import OptionTokens

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class _Token:
    """One token of an echoed prompt."""

    text: str
    offset: int
    """Its first character's place."""
    logprob: float | None
    """None for the first one of all."""


def scores_of(
    prompt: str, options: Sequence[str], choices: Sequence[Mapping[str, Any]]
) -> list[OptionTokens]:
    """Return the options' scores. Ids are made up: -1, -2, ... by the tokens' texts.

    Args:
        choices: One for each option, in the same order: the echoed text and one more token.
    Raises:
        InvalidRequestError: there is nothing before the options that they could follow.
        BackendError: the server told of no log-probabilities.
    """
    if not prompt:
        raise InvalidRequestError("the prompt is empty", param="prompt")
    echoed = [
        [token for token in _tokens(choice) if token.offset < len(prompt) + len(option)]
        for choice, option in zip(choices, options, strict=True)
    ]
    edge, place = -1, len(prompt)
    while edge != place:
        edge, place = place, min(_edge(tokens, place) for tokens in echoed)
    ids: dict[str, int] = {}
    return [_score([token for token in tokens if token.offset >= edge], ids) for tokens in echoed]


def _edge(tokens: Sequence[_Token], place: int) -> int:
    """Return where the token begins that holds the character at a place."""
    return max((token.offset for token in tokens if token.offset <= place), default=0)


def _score(tokens: Sequence[_Token], ids: dict[str, int]) -> OptionTokens:
    if not tokens or any(token.logprob is None for token in tokens):
        raise InvalidRequestError(
            "the options cannot be told from the prompt's first token: write more before them",
            param="options",
        )
    numbers = tuple(ids.setdefault(token.text, -1 - len(ids)) for token in tokens)
    return OptionTokens(numbers, tuple(token.logprob or 0.0 for token in tokens))


def _tokens(choice: Mapping[str, Any]) -> Iterator[_Token]:
    told = choice.get("logprobs") or {}
    try:
        rows = zip(told["tokens"], told["text_offset"], told["token_logprobs"], strict=True)
    except (KeyError, TypeError):
        raise BackendError("the server tells no log-probabilities of prompts") from None
    for text, offset, logprob in rows:
        yield _Token(text, offset, logprob)
