"""From a Python type to what the output must look like, and from the output back to a value.

str                                  no constraint
int, float, bool, Literal, Enum      a regular expression or a choice
dataclass, pydantic, list, dict, X | Y    JSON, by the type's schema
regex= / schema= / grammar=          as given; the value is the text, or the parsed JSON
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError

from radixserve.errors import InvalidRequestError
from radixserve.grammar.spec import ChoiceSpec, GrammarTextSpec, JsonSchemaSpec, RegexSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from radixserve.grammar.spec import GrammarSpec

INT = r"-?(0|[1-9][0-9]{0,17})"
FLOAT = r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,12})?"
_BOOLS = {"true": True, "false": False}


class UnreadableOutputError(Exception):
    """An output is no value of the type; the message says why, for the model to read."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """What an output must look like."""

    spec: GrammarSpec
    schema: Mapping[str, Any] | None = None
    """The same as a JSON schema, for servers that take nothing else."""


@dataclass(frozen=True, slots=True)
class OutputType:
    """A constraint, if any, and the way back to a value."""

    constraint: Constraint | None
    parse: Callable[[str], Any]
    """Raises UnreadableOutputError."""


def output_type(
    kind: Any = str,
    *,
    regex: str | None = None,
    schema: Mapping[str, Any] | None = None,
    grammar: str | None = None,
) -> OutputType:
    """Return how to make a model write a value of a type.

    Args:
        kind: A type; ignored where one of the others is given.
        regex: The whole output matches it.
        schema: The output is JSON that is valid under it; the value is the parsed JSON.
        grammar: Lark or GBNF.
    Raises:
        InvalidRequestError: two of them are given, or the type cannot be written as JSON.
    """
    named = {"regex": regex, "schema": schema, "grammar": grammar}
    given = [name for name, value in named.items() if value is not None]
    if len(given) > 1:
        raise InvalidRequestError(f"{given[0]} and {given[1]} exclude each other", param=given[1])
    if regex is not None:
        return OutputType(Constraint(RegexSpec(regex)), str)
    if schema is not None:
        return OutputType(_json(schema), _loads)
    if grammar is not None:
        return OutputType(Constraint(GrammarTextSpec(grammar)), str)
    return _of_type(kind)


def _of_type(kind: Any) -> OutputType:
    if kind is str:
        return OutputType(None, str)
    if kind is bool:
        return _choices(_BOOLS)
    if kind is int:
        return OutputType(_number(INT, "integer"), _converted(int))
    if kind is float:
        return OutputType(_number(FLOAT, "number"), _converted(float))
    if get_origin(kind) is Literal:
        return _choices({str(value): value for value in get_args(kind)})
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _choices({str(member.value): member for member in kind})
    return _by_schema(kind)


def _number(pattern: str, name: str) -> Constraint:
    return Constraint(RegexSpec(pattern), {"type": name})


def _choices(values: Mapping[str, Any]) -> OutputType:
    constraint = Constraint(ChoiceSpec(tuple(values)), {"type": "string", "enum": list(values)})

    def parse(text: str) -> Any:
        plain = text.strip().strip('"')
        if plain not in values:
            raise UnreadableOutputError(f"it must be one of {', '.join(values)}")
        return values[plain]

    return OutputType(constraint, parse)


def _converted(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            raise UnreadableOutputError(f"it must be a number, not {text[:64]!r}") from None

    return parse


def _by_schema(kind: Any) -> OutputType:
    try:
        adapter = TypeAdapter(kind)
        schema = adapter.json_schema()
    except (PydanticSchemaGenerationError, PydanticUserError) as failed:
        shown = kind.__name__ if isinstance(kind, type) else repr(kind)
        raise InvalidRequestError(
            f"{shown} cannot be generated: {failed.message}", param="type"
        ) from None

    def parse(text: str) -> Any:
        try:
            return adapter.validate_json(text)
        except ValidationError as failed:
            first = failed.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise UnreadableOutputError(
                f"{where}: {first['msg']}" if where else first["msg"]
            ) from None

    return OutputType(_json(_closed(schema)), parse)


def _closed(schema: Any) -> Any:
    """Return a type's schema without room for members that the type does not have."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(value) for name, value in schema.items()}
    if "properties" in closed and schema.get("type") == "object":
        closed.setdefault("additionalProperties", False)
    return closed


def _json(schema: Mapping[str, Any]) -> Constraint:
    return Constraint(JsonSchemaSpec.of(schema), schema)


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as failed:
        raise UnreadableOutputError(f"it is not JSON: {failed}") from None


def name_of(kind: Any) -> str:
    """Return a type's name, for messages."""
    plain = isinstance(kind, type) and get_origin(kind) is None
    return kind.__name__ if plain else repr(kind).replace("typing.", "")
