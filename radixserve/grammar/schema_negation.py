"""The opposite of a JSON schema, as another schema, where there is one."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

from radixserve.grammar.patterns import UNWRITABLE
from radixserve.grammar.schema_walk import target_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from radixserve.grammar.schema_walk import Schema

TYPES = frozenset({"null", "boolean", "object", "array", "number", "string"})

ASSERTIONS = frozenset(
    {
        *("type", "enum", "const", "$ref", "$dynamicRef", "$recursiveRef", "extends", "disallow"),
        *("allOf", "anyOf", "oneOf", "not", "if", "then", "else"),
        *("properties", "patternProperties", "additionalProperties", "propertyNames", "required"),
        *("dependencies", "dependentRequired", "dependentSchemas", "unevaluatedProperties"),
        *("items", "prefixItems", "additionalItems", "contains", "minContains", "maxContains"),
        *("uniqueItems", "unevaluatedItems", "multipleOf", "divisibleBy", "pattern"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength"),
        *("minItems", "maxItems", "minProperties", "maxProperties"),
    }
)
"""Keywords that ask for something, of any draft. All values are valid under any other word; so says
the standard of `format` too."""

BUDGET = 2_000
"""Steps of one schema's negations: they may multiply."""

MAX_STRING_LEN = 100
"""Characters of a string that is left out of all strings."""

_OPPOSITE_BOUNDS = {
    "minimum": ("number", "exclusiveMaximum", 0),
    "maximum": ("number", "exclusiveMinimum", 0),
    "exclusiveMinimum": ("number", "maximum", 0),
    "exclusiveMaximum": ("number", "minimum", 0),
    "minLength": ("string", "maxLength", -1),
    "maxLength": ("string", "minLength", 1),
    "minItems": ("array", "maxItems", -1),
    "maxItems": ("array", "minItems", 1),
    "minProperties": ("object", "maxProperties", -1),
    "maxProperties": ("object", "minProperties", 1),
}
"""Keyword -> the type it is about, the keyword of the opposite, and what is added to its value."""


class NoOpposite(Exception):
    """The library has no words for the opposite of a schema; names the keyword."""


class Negation:
    """Says what is not valid under subschemas of one root.

    Args:
        root: Where references point.
    """

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._budget = BUDGET
        self._is_old = any(f"draft-0{draft}" in str(root.get("$schema")) for draft in (3, 4))
        """Whether `const` means nothing yet."""

    def of(self, schema: Any) -> Any:
        """Return a schema under which exactly the values are valid that are not under `schema`.

        Raises:
            NoOpposite: there are no words for it.
        """
        if isinstance(schema, bool):
            return not schema
        if not isinstance(schema, dict):
            raise NoOpposite("$ref")
        self._spend(1)
        asked = assertions(schema)
        if "$ref" in asked and len(asked) > 1:
            raise NoOpposite("$ref")  # what is beside it counts in some drafts only
        parts: list[Any] = []
        for name in asked:
            parts += self._part(schema, name, schema[name])
        return any_of(parts)

    def _spend(self, steps: int) -> None:
        self._budget -= steps
        if self._budget < 0:
            raise NoOpposite("too large")

    def _part(self, schema: Schema, name: str, value: Any) -> list[Any]:
        """Return the alternatives, each of which breaks one keyword."""
        if name in _OPPOSITE_BOUNDS:
            return [_opposite_bound(name, value)]
        rule = self._RULES.get(name)
        if rule is None:
            raise NoOpposite(name)
        return rule(self, schema, value)

    def _of_ref(self, schema: Schema, value: Any) -> list[Any]:
        target = target_of(self._root, schema)
        if target is None:
            raise NoOpposite("$ref")
        return [self.of(target)]

    def _of_type(self, schema: Schema, value: Any) -> list[Any]:
        named = {value} if isinstance(value, str) else set(value)
        if "integer" in named and "number" not in named:
            raise NoOpposite("type")
        return [{"type": sorted(TYPES - named)}]

    def _of_required(self, schema: Schema, value: Any) -> list[Any]:
        return [{"type": "object", "properties": {key: False}} for key in value]

    def _of_properties(self, schema: Schema, value: Any) -> list[Any]:
        return [
            {"type": "object", "required": [key], "properties": {key: self.of(child)}}
            for key, child in value.items()
            if child is not True and child != {}
        ]

    def _of_enum(self, schema: Schema, value: Any) -> list[Any]:
        self._spend(len(json.dumps(value)) // 10)
        return [other_than(value)]

    def _of_const(self, schema: Schema, value: Any) -> list[Any]:
        if self._is_old:
            raise NoOpposite("const")
        return [other_than([value])]

    def _of_all(self, schema: Schema, value: Any) -> list[Any]:
        return [self.of(child) for child in value]

    def _of_any(self, schema: Schema, value: Any) -> list[Any]:
        return [{"allOf": [self.of(child) for child in value]}]

    def _of_not(self, schema: Schema, value: Any) -> list[Any]:
        self._spend(len(json.dumps(value)) // 10)
        return [value]

    _RULES: dict[str, Callable[[Negation, Schema, Any], list[Any]]] = {  # noqa: RUF012
        "$ref": _of_ref,
        "type": _of_type,
        "required": _of_required,
        "properties": _of_properties,
        "enum": _of_enum,
        "const": _of_const,
        "allOf": _of_all,
        "anyOf": _of_any,
        "not": _of_not,
    }


def any_of(parts: Sequence[Any]) -> Any:
    """Return the schema of what is valid under one of the parts at least."""
    possible = [part for part in parts if part is not False]
    if any(part is True for part in possible):
        return True
    if not possible:
        return False
    return possible[0] if len(possible) == 1 else {"anyOf": possible}


def _opposite_bound(name: str, value: Any) -> Any:
    kind, opposite, step = _OPPOSITE_BOUNDS[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise NoOpposite(name)
    bound = value + step
    return False if step < 0 and bound < 0 else {"type": kind, opposite: bound}


def other_than(values: Sequence[Any]) -> Any:
    """Return a schema of all values but these.

    Raises:
        NoOpposite: one is an array or an object, or there are too many numbers.
    """
    strings = [value for value in values if isinstance(value, str)]
    flags = [value for value in values if isinstance(value, bool)]
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if any(len(string) > MAX_STRING_LEN for string in strings):
        raise NoOpposite("enum")
    if len(strings) + len(flags) + len(numbers) + list(values).count(None) != len(values):
        raise NoOpposite("enum")
    whole = TYPES - {"string"} if strings else TYPES
    whole -= {"boolean"} if flags else set()
    whole -= {"null"} if None in values else set()
    whole -= {"number"} if numbers else set()
    parts: list[Any] = [{"type": sorted(whole)}]
    if strings:
        parts.append({"type": "string", "pattern": f"^(?:{_other_strings(strings)})$"})
    if len(set(flags)) == 1:
        parts.append({"const": not flags[0]})
    return any_of([*parts, *_between(sorted(set(numbers)))])


def _between(numbers: Sequence[float]) -> list[Any]:
    """Return the ranges that numbers leave free."""
    if not numbers:
        return []
    ranges: list[Any] = [{"type": "number", "exclusiveMaximum": numbers[0]}]
    ranges += [
        {"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high}
        for low, high in itertools.pairwise(numbers)
    ]
    return [*ranges, {"type": "number", "exclusiveMinimum": numbers[-1]}]


def _other_strings(strings: Sequence[str]) -> str:
    """Return a regex for all strings but these: one branch for each way to leave their trie."""
    firsts = sorted({string[0] for string in strings if string})
    branches = [] if "" in strings else [""]
    excluded = "".join(rf"\u{{{ord(char):x}}}" for char in firsts)
    any_char = f"[^{UNWRITABLE}]"
    branches.append(f"[^{excluded}{UNWRITABLE}]{any_char}*")
    for char in firsts:
        rest = [string[1:] for string in strings if string.startswith(char)]
        branches.append(rf"\u{{{ord(char):x}}}(?:{_other_strings(rest)})")
    return "|".join(branches)


def assertions(schema: Schema) -> list[str]:
    """Return the keywords of a schema that ask for something."""
    return [name for name in schema if name in ASSERTIONS]
