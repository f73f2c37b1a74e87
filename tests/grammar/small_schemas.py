"""Small random schemas, each with values that are valid under it, and ways to spoil a value."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from random import Random

WORDS = ("a", "name", "the tree", "é", "日本", "🦜 x", 'say "hi"', "back\\slash", "tab\there", "")


def make_schema(rng: Random, depth: int = 2) -> tuple[dict[str, Any], list[Any]]:
    """Return a schema and some values that are valid under it."""
    kinds = [_string, _integer, _number, _choice, _boolean]
    if depth:
        kinds += [_object, _object, _array, _any_of]
    return rng.choice(kinds)(rng, depth)


def _string(rng: Random, depth: int) -> tuple[dict[str, Any], list[Any]]:
    if rng.random() < 0.3:
        return {"type": "string", "pattern": "^[a-c]{2}[0-9]?$"}, ["ab", "cc7"]
    words = rng.sample(WORDS, 3)
    lengths = [len(word) for word in words]
    return {"type": "string", "minLength": min(lengths), "maxLength": max(lengths)}, words


def _integer(rng: Random, depth: int) -> tuple[dict[str, Any], list[Any]]:
    low = rng.randrange(-50, 50)
    high = low + rng.randrange(1, 200)
    schema = {"type": "integer", "minimum": low, "maximum": high}
    return schema, [low, high, rng.randint(low, high)]


def _number(rng: Random, depth: int) -> tuple[dict[str, Any], list[Any]]:
    if rng.random() < 0.5:
        return {"type": "number"}, [0, -1.5, 1e20, 2.5e-7]
    return {"type": "number", "exclusiveMinimum": 0, "maximum": 10}, [10, 0.25, 3]


def _choice(rng: Random, depth: int) -> tuple[dict[str, Any], list[Any]]:
    values: list[Any] = rng.sample([*WORDS, 1, 2.5, None, True], 3)
    return {"enum": values}, values


def _boolean(rng: Random, depth: int) -> tuple[dict[str, Any], list[Any]]:
    if rng.random() < 0.5:
        return {"type": "boolean"}, [True, False]
    return {"type": "null"}, [None]


def _object(rng: Random, depth: int) -> tuple[dict[str, Any], list[Any]]:
    keys = sorted(rng.sample(["id", "the key", "näme", "x", "y z"], rng.randrange(1, 4)))
    made = {key: make_schema(rng, depth - 1) for key in keys}
    required = [key for key in keys if rng.random() < 0.6]
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {key: one for key, (one, _) in made.items()},
        "required": required,
    }
    if rng.random() < 0.7:
        schema["additionalProperties"] = False
    whole = {key: rng.choice(values) for key, (_, values) in made.items()}
    least = {key: value for key, value in whole.items() if key in required}
    return schema, [whole, least]


def _array(rng: Random, depth: int) -> tuple[dict[str, Any], list[Any]]:
    items, values = make_schema(rng, depth - 1)
    low = rng.randrange(0, 3)
    schema = {"type": "array", "items": items, "minItems": low, "maxItems": low + 2}
    return schema, [[rng.choice(values) for _ in range(low + extra)] for extra in (0, 2)]


def _any_of(rng: Random, depth: int) -> tuple[dict[str, Any], list[Any]]:
    one, other = make_schema(rng, depth - 1), make_schema(rng, depth - 1)
    return {"anyOf": [one[0], other[0]]}, one[1] + other[1]


def spoiled(rng: Random, value: Any) -> Any:
    """Return a value that differs somewhere; it may still be valid."""
    value = copy.deepcopy(value)
    if isinstance(value, dict) and value and rng.random() < 0.7:
        return _spoiled_object(rng, value)
    if isinstance(value, list) and rng.random() < 0.7:
        return value[:-1] if value and rng.random() < 0.5 else [*value, spoiled(rng, None)]
    return rng.choice([None, True, -999, 10.5, "zzzzzzzzzzzzzz", "", [], {}, [value], {"v": value}])


def _spoiled_object(rng: Random, value: dict[str, Any]) -> dict[str, Any]:
    key = rng.choice(sorted(value))
    match rng.randrange(3):
        case 0:
            del value[key]
        case 1:
            value[key] = spoiled(rng, value[key])
        case _:
            value[f"{key}+"] = 1
    return value
