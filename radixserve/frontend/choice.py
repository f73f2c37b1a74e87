"""Which of some options the model holds likeliest."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, TypeAlias

from radixserve.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.frontend.backends.protocol import OptionTokens

Method: TypeAlias = Literal["joint", "mean", "tokenwise", "unconditional"]
METHODS: tuple[Method, ...] = ("joint", "mean", "tokenwise", "unconditional")


class Choice(str):
    """The chosen option: a str that knows how likely each option was."""

    probs: dict[str, float]
    """Option -> probability among the options; they add up to 1."""
    logprobs: dict[str, float]
    """Option -> natural logarithm of its probability as a continuation."""

    __slots__ = ("logprobs", "probs")

    def __new__(cls, text: str, probs: dict[str, float], logprobs: dict[str, float]) -> Choice:
        """Return the option `text` with what was found of all."""
        choice = super().__new__(cls, text)
        choice.probs = probs
        choice.logprobs = logprobs
        return choice


def check_options(options: Sequence[str], method: str) -> None:
    """Refuse what cannot be chosen from.

    Raises:
        InvalidRequestError: there are no options, an empty one, two equal ones, or no such method.
    """
    if not options:
        raise InvalidRequestError("select needs at least one option", param="options")
    if any(not option for option in options):
        raise InvalidRequestError("an option is empty", param="options")
    if len(set(options)) != len(options):
        raise InvalidRequestError("an option is given twice", param="options")
    if method not in METHODS:
        raise InvalidRequestError(f"method must be one of {', '.join(METHODS)}", param="method")


def choose(
    options: Sequence[str],
    scored: Sequence[OptionTokens],
    method: Method,
    prior: Sequence[OptionTokens] | None = None,
    pick: float | None = None,
) -> Choice:
    """Return one of the options.

    joint           by the probability of the whole option: what drawing continuations until one
                    of the options comes would give
    mean            by the mean log-probability of its tokens
    tokenwise       token by token, the likeliest that some option has: what constrained greedy
                    decoding does
    unconditional   by how much likelier the context makes it, against `prior`

    Args:
        scored: The options' tokens, in the same order; what ends an option may be among them.
        prior: The options' tokens without the context.
        pick: In [0, 1): draw by probability; the likeliest when None, the first of equals.
    Complexity: O(tokens).
    """
    logprobs = [math.fsum(one.logprobs) for one in scored]
    values = logprobs
    if method == "mean":
        values = [total / len(one.logprobs) for total, one in zip(logprobs, scored, strict=True)]
    elif method == "unconditional":
        assert prior is not None
        values = [
            total - math.fsum(one.logprobs) for total, one in zip(logprobs, prior, strict=True)
        ]
    elif method == "tokenwise":
        winner = _walk(scored)
        values = [0.0 if index == winner else -math.inf for index in range(len(options))]
    probs = _softmax(values)
    index = _best(probs) if pick is None else _drawn(probs, pick)
    return Choice(
        options[index],
        dict(zip(options, probs, strict=True)),
        dict(zip(options, logprobs, strict=True)),
    )


def _softmax(values: Sequence[float]) -> list[float]:
    top = max(values)
    weights = [math.exp(value - top) for value in values]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def _best(probs: Sequence[float]) -> int:
    return max(range(len(probs)), key=lambda index: (probs[index], -index))


def _drawn(probs: Sequence[float], pick: float) -> int:
    mass = 0.0
    for index, prob in enumerate(probs):
        mass += prob
        if pick < mass:
            return index
    return _best(probs)


def _walk(scored: Sequence[OptionTokens]) -> int:
    """Go down the options' trie by the likeliest token; return the option where it ends."""
    left = list(range(len(scored)))
    place = 0
    while len(left) > 1:
        ended = [index for index in left if len(scored[index].token_ids) == place]
        going = [index for index in left if len(scored[index].token_ids) > place]
        if not going:
            return ended[0]
        best = max(going, key=lambda index: (scored[index].logprobs[place], -index))
        token = scored[best].token_ids[place]
        left = [index for index in going if scored[index].token_ids[place] == token]
        place += 1
    return left[0]
