"""What is said in other words means the same: the grammar and a validator agree on each value."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from radixserve.errors import UnsupportedGrammarError
from radixserve.grammar.json_schema import prepare_schema
from radixserve.grammar.schema_negation import Negation, NoOpposite
from radixserve.grammar.spec import JsonSchemaSpec
from tests.grammar.test_json_schema import judged

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from radixserve.grammar.compiler import GrammarCompiler

AB = {"a": {"type": "integer"}, "b": {"type": "integer"}}
KIND = {
    "type": "object",
    "properties": {"kind": {"enum": ["x", "y"]}, "n": {"type": "integer"}},
    "required": ["kind"],
    "additionalProperties": False,
}
OBJECTS = [{}, {"a": 1}, {"a": 7}, {"b": 1}, {"a": 1, "b": 2}]
KINDS = [{"kind": "x"}, {"kind": "x", "n": 1}, {"kind": "y"}, {"kind": "y", "n": 1}]
SCALARS = [0, 1, 2.5, -3, "", "a", "ab", "abc", "b", None, True, False, [], {}]


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        ({"not": {"type": "string"}}, SCALARS),
        ({"not": {"type": ["string", "number", "null"]}}, SCALARS),
        ({"not": {"const": "ab"}}, [*SCALARS, 'a"', "a\n"]),
        ({"type": "string", "not": {"enum": ["ab", "b", ""]}}, [*SCALARS, 'a"', "b\\"]),
        ({"not": {"enum": [1, 2.5, None, True]}}, SCALARS),
        ({"type": "string", "not": {"maxLength": 1}}, SCALARS),
        ({"type": "number", "not": {"minimum": 1}}, SCALARS),
        ({"type": "object", "properties": AB, "not": {"required": ["a", "b"]}}, OBJECTS),
        ({"type": "object", "properties": AB, "not": {"properties": {"a": {"const": 1}}}}, OBJECTS),
        ({"not": {"anyOf": [{"type": "string"}, {"type": "object"}]}}, SCALARS),
        ({"not": {"not": {"type": "string"}}}, SCALARS),
        (
            {**KIND, "if": {"properties": {"kind": {"const": "x"}}}, "then": {"required": ["n"]}},
            KINDS,
        ),
        (
            {
                **KIND,
                "if": {"properties": {"kind": {"const": "x"}}},
                "then": {"required": ["n"]},
                "else": {"properties": {"n": False}},
            },
            KINDS,
        ),
        ({"if": {"type": "string"}, "else": {"type": "number"}}, SCALARS),
        ({"if": {"const": 5}}, SCALARS),
        (
            {
                "type": "object",
                "properties": AB,
                "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
            },
            OBJECTS,
        ),
        ({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 1}]}, SCALARS),
        ({"oneOf": [{"enum": ["a", 1]}, {"enum": ["ab", 2.5]}]}, SCALARS),
        ({"oneOf": [{"format": "date"}, {"enum": ["a", "b"]}]}, ["a", "b", 1, None, "2020-02-29"]),
        ({"type": "object", "properties": AB, "dependentRequired": {"a": ["b"]}}, OBJECTS),
        ({"properties": AB, "dependentRequired": {"a": ["b"]}}, [*OBJECTS, "a", []]),
        (
            {
                "type": "object",
                "properties": AB,
                "dependentSchemas": {"a": {"properties": {"b": {"const": 2}}}},
            },
            [*OBJECTS, {"a": 1, "b": 3}],
        ),
        ({"propertyNames": {"pattern": "^a+$"}}, [*OBJECTS, {"aa": "x"}, 5]),
        ({"properties": AB, "propertyNames": {"enum": ["a", "c"]}}, [*OBJECTS, {"c": 1}, {"d": 1}]),
        (
            {
                "allOf": [{"properties": {"a": {"type": "integer"}}}],
                "properties": {"b": {"type": "integer"}},
                "unevaluatedProperties": False,
            },
            [*OBJECTS, {"c": 1}, {"a": "x"}],
        ),
        (
            {"properties": AB, "unevaluatedProperties": {"type": "null"}},
            [*OBJECTS, {"c": None}, {"c": 1}],
        ),
        ({"prefixItems": [{"type": "null"}], "unevaluatedItems": False}, [[], [None], [None, 1]]),
        (
            {"allOf": [{"items": {"type": "null"}}], "unevaluatedItems": False},
            [[], [None], [None, None], [1]],
        ),
        (
            {
                "$defs": {"n": {"$dynamicAnchor": "node", "type": "array", "maxItems": 1}},
                "items": {"$dynamicRef": "#node"},
                "maxItems": 1,
            },
            [[], [[]], [[1]], [1]],
        ),
    ],
    ids=lambda value: json.dumps(value)[:70] if isinstance(value, dict) else "",
)
def test_a_keyword_in_other_words_means_the_same(
    compiler: GrammarCompiler, tokenizer: Tokenizer, schema: Any, values: list[Any]
) -> None:
    found = judged(compiler, tokenizer, schema, *values)

    assert any(found)


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"not": {"pattern": "a"}}, "not"),
        ({"not": {"type": "integer"}}, "not"),
        ({"not": {"enum": [[1]]}}, "not"),
        ({"not": {"items": {"type": "string"}}}, "not"),
        ({"oneOf": [{"type": "integer"}, {"multipleOf": 2}]}, "oneOf"),
        ({"if": {"items": {"type": "null"}}, "then": {"maxItems": 2}}, "if"),
        (
            {"anyOf": [{"properties": AB}, {"type": "object"}], "unevaluatedProperties": False},
            "unev",
        ),
        ({"propertyNames": {"minLength": 2}}, "propertyNames"),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "not": {"const": 1}}, "not"),
    ],
    ids=str,
)
def test_what_has_no_other_words_is_refused_in_the_callers(
    compiler: GrammarCompiler, schema: Any, keyword: str
) -> None:
    with pytest.raises(UnsupportedGrammarError, match=keyword):
        compiler.compile(JsonSchemaSpec.of(schema))


def test_a_schema_that_the_library_knows_is_left_in_its_own_words() -> None:
    schema = {"anyOf": [{"type": "string"}, {"type": "null"}], "minLength": 2}
    text = json.dumps(schema, separators=(",", ":"))

    assert prepare_schema(text, rewrites=True) == text


def test_negations_that_multiply_come_to_an_end() -> None:
    defs: dict[str, Any] = {
        f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(30)
    }
    root = {"$defs": {**defs, "a30": {"type": "string"}}, "not": {"$ref": "#/$defs/a0"}}

    with pytest.raises(NoOpposite):
        Negation(root).of(root["not"])
    with pytest.raises(NoOpposite):
        Negation({}).of({"enum": ["x" * 5000]})
