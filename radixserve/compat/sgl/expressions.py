"""What can be appended to a state: texts, generations, choices, roles, and sums of these."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from radixserve.errors import InvalidRequestError, UnsupportedFeatureError
from radixserve.frontend.constraint import FLOAT, INT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from radixserve.frontend.choice import Method

Role: TypeAlias = Literal["system", "user", "assistant"]

token_length_normalized: Method = "mean"
"""By the mean log-probability of an option's tokens: the default of SGLang, kept here."""
greedy_token_selection: Method = "tokenwise"
unconditional_likelihood_normalized: Method = "unconditional"

PATTERNS: Mapping[Any, str] = {
    int: INT,
    float: FLOAT,
    bool: "(True|False)",
    str: r'"[\w ]*"',
}
"""What an output of a `dtype` looks like; its value is the text."""

_SAMPLING = frozenset({"temperature", "top_p", "top_k", "stop", "n"})
_UNSUPPORTED = frozenset(
    {
        "frequency_penalty",
        "ignore_eos",
        "logprob_start_len",
        "min_p",
        "min_tokens",
        "presence_penalty",
        "return_logprob",
        "return_text_in_logprobs",
        "stop_regex",
        "stop_token_ids",
        "top_logprobs_num",
    }
)


class Expr:
    """Something that can be appended, alone or in a sum with others and with texts."""

    __slots__ = ()

    def __add__(self, other: Expr | str) -> Sum:
        return Sum((self, expression(other)))

    def __radd__(self, other: Expr | str) -> Sum:
        return Sum((expression(other), self))


@dataclass(frozen=True, slots=True)
class Words(Expr):
    """A text."""

    text: str


@dataclass(frozen=True, slots=True)
class Gen(Expr):
    """A text that the model writes."""

    name: str | None
    options: Mapping[str, Any] = field(default_factory=dict)
    """As `Prompt.gen` takes them; those that are missing are the run's."""


@dataclass(frozen=True, slots=True)
class Select(Expr):
    """A text that the model chooses."""

    name: str | None
    choices: tuple[str, ...]
    method: Method
    temperature: float


@dataclass(frozen=True, slots=True)
class Begin(Expr):
    """A turn begins."""

    role: Role


@dataclass(frozen=True, slots=True)
class End(Expr):
    """A turn ends."""

    role: Role


@dataclass(frozen=True, slots=True)
class Sum(Expr):
    """One after the other."""

    items: tuple[Expr, ...]


def expression(value: Expr | str) -> Expr:
    """Return a text or an expression as an expression.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(value, Expr):
        return value
    if isinstance(value, str):
        return Words(value)
    raise TypeError(f"a state takes texts and expressions, not {type(value).__name__}")


def flat(value: Expr | str) -> list[Expr]:
    """Return an expression's parts in order, none of them a sum."""
    found: list[Expr] = []
    todo = [expression(value)]
    while todo:
        part = todo.pop()
        if isinstance(part, Sum):
            todo += reversed(part.items)
        else:
            found.append(part)
    return found


def gen(name: str | None = None, max_tokens: int | None = None, **options: Any) -> Gen | Select:
    """Let the model write.

    Args:
        name: The text is found under it, as ``s[name]``.
        options: n, stop, temperature, top_p, top_k, dtype, regex, json_schema; with choices (and
            choices_method) it is a `select`.
    Raises:
        UnsupportedFeatureError: an option of SGLang's that is not built.
        InvalidRequestError: there is no such option.
    """
    given = {key: value for key, value in options.items() if value is not None}
    choices = given.pop("choices", None)
    method = given.pop("choices_method", token_length_normalized)
    if choices is not None:
        return select(name, choices, given.get("temperature", 0.0), method)
    fields = sampling(given, beside=("dtype", "regex", "json_schema"))
    fields |= _constraint(given)
    if max_tokens is not None:
        fields["max_tokens"] = max_tokens
    return Gen(name, fields)


def gen_int(name: str | None = None, **options: Any) -> Gen | Select:
    """Let the model write a whole number; its value is the text."""
    return gen(name, dtype=int, **options)


def gen_string(name: str | None = None, **options: Any) -> Gen | Select:
    """Let the model write a text in quotes."""
    return gen(name, dtype=str, **options)


def select(
    name: str | None = None,
    choices: Sequence[str] | None = None,
    temperature: float = 0.0,
    choices_method: Method = token_length_normalized,
) -> Select:
    """Let the model choose.

    Raises:
        InvalidRequestError: there is nothing to choose from.
    """
    if not choices:
        raise InvalidRequestError("select needs choices", param="choices")
    return Select(name, tuple(choices), choices_method, temperature)


def sampling(
    given: Mapping[str, Any], *, where: str = "gen", beside: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the sampling options among some keyword arguments, as `Prompt.gen` takes them.

    Args:
        where: What takes them, for messages.
        beside: Names that are somebody else's.
    Raises:
        UnsupportedFeatureError, InvalidRequestError: see `gen`.
    """
    fields = {}
    for name, value in given.items():
        if name in beside:
            continue
        if name in _UNSUPPORTED:
            raise UnsupportedFeatureError(f"{name} is not supported here", param=name)
        if name not in _SAMPLING:
            raise InvalidRequestError(f"{where} has no argument {name!r}", param=name)
        fields[name] = max(value, 0) if name == "top_k" else value
    return fields


def _constraint(given: Mapping[str, Any]) -> dict[str, Any]:
    if "json_schema" in given:
        schema = given["json_schema"]
        return {"schema": json.loads(schema) if isinstance(schema, str) else schema}
    if "regex" in given:
        return {"regex": given["regex"]}
    if "dtype" not in given:
        return {}
    if given["dtype"] not in PATTERNS:
        raise InvalidRequestError("dtype must be int, float, bool or str", param="dtype")
    return {"regex": PATTERNS[given["dtype"]]}


def _turn(role: Role, content: Expr | str | None) -> Sum:
    inside = () if content is None else (expression(content),)
    return Sum((Begin(role), *inside, End(role)))


def system(expr: Expr | str | None = None) -> Sum:
    """Write the system's turn."""
    return _turn("system", expr)


def user(expr: Expr | str | None = None) -> Sum:
    """Write a turn of the user."""
    return _turn("user", expr)


def assistant(expr: Expr | str | None = None) -> Sum:
    """Write a turn of the assistant, or let the model write in it."""
    return _turn("assistant", expr)


def system_begin() -> Begin:
    """Begin the system's turn."""
    return Begin("system")


def system_end() -> End:
    """End it."""
    return End("system")


def user_begin() -> Begin:
    """Begin a turn of the user."""
    return Begin("user")


def user_end() -> End:
    """End it."""
    return End("user")


def assistant_begin() -> Begin:
    """Begin a turn of the assistant."""
    return Begin("assistant")


def assistant_end() -> End:
    """End it."""
    return End("assistant")
