from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from radixserve.errors import UnsupportedGrammarError
from radixserve.grammar.json_schema import prepare_schema
from radixserve.grammar.spec import ANY_JSON_OBJECT, JsonSchemaSpec
from tests.grammar.following import accepts

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from radixserve.grammar.compiler import GrammarCompiler


def judged(
    compiler: GrammarCompiler, tokenizer: Tokenizer, schema: Any, *values: Any
) -> list[bool]:
    """For each value, whether the grammar takes it; it must agree with a validator."""
    texts = [json.dumps(value, ensure_ascii=False) for value in values]
    found = accepts(compiler, tokenizer, JsonSchemaSpec.of(schema), *texts)
    validator = jsonschema.Draft202012Validator(schema)
    assert found == [validator.is_valid(value) for value in values]
    return found


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"a": {"b": [1, -2.5e10, null, true, "x\\n\\"y\\\\"]}}',
        '{"a":1,"b":[],"c":{}}',
        '{\n    "a": {\n        "b": 1\n    }\n}',
        '{"日本": "🦜"}',
        '{"deep": ' + "[" * 60 + "]" * 60 + "}",
    ],
)
def test_any_object_is_an_object(
    compiler: GrammarCompiler, tokenizer: Tokenizer, text: str
) -> None:
    assert accepts(compiler, tokenizer, ANY_JSON_OBJECT, text) == [True]


@pytest.mark.parametrize(
    "text",
    ["[]", '"a"', "1", "{} ", " {}", "{,}", '{"a":01}', '{"a":1,}', '{"a" 1}', "{'a':1}", "{"],
)
def test_nothing_else_is(compiler: GrammarCompiler, tokenizer: Tokenizer, text: str) -> None:
    assert accepts(compiler, tokenizer, ANY_JSON_OBJECT, text) == [False]


@pytest.mark.parametrize("number", ["0", "-0", "1.5", "1e5", "-2.5E-7", "123456789012345678901234"])
def test_numbers_have_all_their_forms(
    compiler: GrammarCompiler, tokenizer: Tokenizer, number: str
) -> None:
    assert accepts(compiler, tokenizer, JsonSchemaSpec('{"type":"number"}'), number) == [True]


def test_white_space_does_not_go_on_for_ever(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    texts = ["{ }", "{\n  }", "{  }", "{\n\n}", "{\t}"]

    assert accepts(compiler, tokenizer, ANY_JSON_OBJECT, *texts) == [
        True,
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("schema", "part"),
    [
        ("x", "object, true or false"),
        (None, "object, true or false"),
        ([], "object, true or false"),
        (False, "false"),
        ({"properties": {"x": "y"}}, "#/properties/x"),
        ({"properties": {"x": {"items": 5}}}, "items"),
        ({"type": "not-a-type"}, "not-a-type"),
        ({"anyOf": [{"type": "string"}, 5]}, "#/anyOf/1"),
        ({"$ref": "#"}, "circle"),
        ({"anyOf": [{"type": "string"}, {"$ref": "#"}]}, "circle"),
        (
            {
                "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
                "$ref": "#/$defs/a",
            },
            "circle",
        ),
        ({"$ref": "#/$defs/x"}, "points at nothing"),
        ({"$ref": "https://example.com/schema.json"}, "example.com"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "array", "contains": {"type": "string"}}, "contains"),
        ({"type": "string", "format": "json-pointer"}, "json-pointer"),
        ({"type": "string", "pattern": "^(?=a)"}, "pattern"),
        ({"properties": {"a": {"pattern": "\\bword\\b"}}}, "#/properties/a"),
        ({"minimum": 5, "maximum": 3, "type": "integer"}, "minimum"),
        ({"enum": []}, "anyOf"),
        ({"multipleOf": 0.01}, "multipleOf"),
        ({"type": "object", "minProperties": 3}, "minProperties"),
        ({"const": "a\u0000b"}, "control character"),
        ({"enum": [1, ["\u0001"]]}, "control character"),
        ({"patternProperties": {"^\\w+$": {"type": "string"}}}, "patternProperties"),
        ({"type": "string", "not": {"pattern": "a"}}, "not"),
        ({"oneOf": [{"pattern": "a"}, {"pattern": "b"}]}, "oneOf"),
    ],
    ids=str,
)
def test_what_cannot_be_enforced_is_refused_with_its_name(
    compiler: GrammarCompiler, schema: Any, part: str
) -> None:
    with pytest.raises(UnsupportedGrammarError) as refused:
        compiler.compile(JsonSchemaSpec.of(schema))

    assert part in str(refused.value)


@pytest.mark.parametrize("text", ["", "{", '{"a":}', "{'type':'object'}", "[" * 100_000])
def test_a_schema_that_is_no_json_is_refused(compiler: GrammarCompiler, text: str) -> None:
    with pytest.raises(UnsupportedGrammarError, match=r"not JSON|nested too deeply"):
        compiler.compile(JsonSchemaSpec(text))


def test_a_parsed_schema_of_any_depth_is_refused_and_not_a_crash(compiler: GrammarCompiler) -> None:
    schema: dict[str, Any] = {}
    for _ in range(20_000):
        schema = {"items": schema}
    with pytest.raises(UnsupportedGrammarError, match="nested"):
        compiler.compile(JsonSchemaSpec.of(schema))


def test_the_librarys_own_switches_are_not_the_callers(compiler: GrammarCompiler) -> None:
    schema = {"x-guidance": {"lenient": True}, "type": "array", "uniqueItems": True}

    with pytest.raises(UnsupportedGrammarError, match="uniqueItems"):
        compiler.compile(JsonSchemaSpec.of(schema))


def test_a_key_cannot_escape_its_schema_by_another_spelling(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    spec = JsonSchemaSpec.of({"type": "object", "properties": {"a/": {"type": "integer"}}})
    texts = ['{"a/": 1}', '{"a/": "x"}', r'{"\u0061/": "x"}', r'{"a\/": "x"}', '{"b": "x"}']

    assert accepts(compiler, tokenizer, spec, *texts) == [True, False, False, False, True]


def test_references_are_followed_wherever_they_point(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    node = {
        "$defs": {
            "N": {
                "type": "object",
                "properties": {
                    "v": {"type": "integer"},
                    "next": {"anyOf": [{"$ref": "#/$defs/N"}, {"type": "null"}]},
                },
                "required": ["v", "next"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/N",
    }
    inner = {"v": 2, "next": None}
    assert judged(compiler, tokenizer, node, {"v": 1, "next": inner}, {"v": 1}, inner) == [
        True,
        False,
        True,
    ]
    odd = {
        "properties": {"a": {"type": "integer"}, "b": {"$ref": "#/properties/a"}},
        "x/y": {"pattern": "^[a-c]\\d$"},
        "items": {"$ref": "#/x~1y"},
    }
    values = ({"a": 1, "b": 2}, {"a": 1, "b": "x"}, ["a1"], ["ax"])
    assert judged(compiler, tokenizer, odd, *values) == [True, False, True, False]


def test_what_asks_for_nothing_is_no_reason_to_refuse(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    schema = {
        "uniqueItems": False,
        "then": {"type": "string"},
        "maxContains": 1,
        "format": "our-own-word",
        "minItems": 1.0,
        "x-ours": {"deep": 1},
    }
    assert judged(compiler, tokenizer, schema, [1], [], "a", 3) == [True, False, True, True]


def test_prepared_schemas_are_json_and_keep_what_they_say() -> None:
    schema = {"type": "object", "properties": {"é": {"const": "\n"}}, "title": "x"}

    assert json.loads(prepare_schema(json.dumps(schema))) == schema
