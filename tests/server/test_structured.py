from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from tests.server.events import choices_of, post, stream, text_of

if TYPE_CHECKING:
    from tests.server.conftest import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "ok": {"type": "boolean"},
    },
    "required": ["name", "age", "ok"],
    "additionalProperties": False,
}
NODE = {
    "$defs": {
        "N": {
            "type": "object",
            "properties": {
                "v": {"type": "integer", "minimum": 0, "maximum": 9},
                "next": {"anyOf": [{"$ref": "#/$defs/N"}, {"type": "null"}]},
            },
            "required": ["v", "next"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/N",
}


def as_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": True}}


def completion(**fields: Any) -> dict[str, Any]:
    return {"prompt": "the", "temperature": 0, "max_tokens": 120, **fields}


def chat(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "the"}]
    return {"messages": messages, "temperature": 0, "max_tokens": 120, **fields}


# -- every way to ask for it -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": as_format(PERSON)},
        {"structured_outputs": {"json": PERSON}},
        {"structured_outputs": {"json": json.dumps(PERSON)}},
        {"guided_json": PERSON},
        {"guided_json": json.dumps(PERSON)},
        {"json_schema": json.dumps(PERSON)},
    ],
    ids=lambda fields: next(iter(fields)),
)
async def test_a_schema_is_kept_to(client: Client, fields: dict[str, Any]) -> None:
    for path, body in ((COMPLETIONS, completion(**fields)), (CHAT, chat(**fields))):
        [choice] = (await post(client, path, body))["choices"]

        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(text_of(choice)), PERSON)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"structured_outputs": {"choice": ["yes", "not", "not sure"]}},
            {"yes", "not", "not sure"},
        ),
        ({"guided_choice": ["yes", "not", "not sure"]}, {"yes", "not", "not sure"}),
        ({"structured_outputs": {"regex": "[ab]1"}}, {"a1", "b1"}),
        ({"guided_regex": "[ab]1"}, {"a1", "b1"}),
        ({"regex": "[ab]1"}, {"a1", "b1"}),
        ({"structured_outputs": {"grammar": 'root ::= ("a" | "b") "1"'}}, {"a1", "b1"}),
        ({"guided_grammar": 'start: ("a" | "b") "1"'}, {"a1", "b1"}),
        ({"ebnf": 'root ::= ("a" | "b") "1"'}, {"a1", "b1"}),
    ],
    ids=str,
)
async def test_the_other_forms_are_kept_to(
    client: Client, fields: dict[str, Any], expected: set[str]
) -> None:
    answer = await post(client, COMPLETIONS, completion(**fields))

    assert answer["choices"][0]["text"] in expected
    assert answer["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"json_object": True}},
    ],
)
async def test_json_object_means_an_object(client: Client, fields: dict[str, Any]) -> None:
    choices = []
    for seed in range(4):
        body = completion(**fields, temperature=1.0, seed=seed, max_tokens=200)
        choices += (await post(client, COMPLETIONS, body))["choices"]

    whole = [choice for choice in choices if choice["finish_reason"] == "stop"]
    assert whole
    assert all(choice["text"].startswith("{") for choice in choices)
    assert all(isinstance(json.loads(choice["text"]), dict) for choice in whole)


async def test_a_text_format_and_empty_fields_ask_for_nothing(client: Client) -> None:
    plain = await post(client, COMPLETIONS, completion())
    fields = {"response_format": {"type": "text"}, "guided_json": None, "regex": "", "ebnf": ""}

    assert (await post(client, COMPLETIONS, completion(**fields)))["choices"] == plain["choices"]


async def test_an_output_that_is_cut_says_length(client: Client) -> None:
    body = completion(response_format=as_format(PERSON), max_tokens=5)
    [choice] = (await post(client, COMPLETIONS, body))["choices"]

    assert choice["finish_reason"] == "length"


async def test_forced_tokens_are_counted_as_output(client: Client) -> None:
    body = completion(guided_choice=["one and only this answer"])
    answer = await post(client, COMPLETIONS, body)
    usage = answer["usage"]

    assert answer["choices"][0]["text"] == "one and only this answer"
    forced = usage["completion_tokens_details"]["forced_tokens"]
    assert 2 <= forced == usage["completion_tokens"] - 1


# -- streams, choices, batches ---------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 3])
async def test_a_stream_says_what_the_whole_answer_says(client: Client, n: int) -> None:
    body = chat(response_format=as_format(PERSON), temperature=1.0, seed=7, n=n)
    whole = await post(client, CHAT, body)
    chunks = await stream(client, CHAT, body)

    for choice in whole["choices"]:
        parts = choices_of(chunks, choice["index"])
        assert "".join(map(text_of, parts)) == text_of(choice)
        assert parts[-1]["finish_reason"] == choice["finish_reason"]
        if choice["finish_reason"] == "stop":
            jsonschema.validate(json.loads(text_of(choice)), PERSON)
    assert len({text_of(choice) for choice in whole["choices"]}) == n


async def test_constraints_of_a_batch_do_not_touch_each_other(client: Client) -> None:
    """Outlines #757: one that finished ended the others."""
    schemas = [
        {
            "type": "object",
            "properties": {f"k{i}": {"type": "integer", "minimum": i, "maximum": i + 1}},
            "required": [f"k{i}"],
            "additionalProperties": False,
        }
        for i in range(8)
    ]
    constrained = [completion(response_format=as_format(schema)) for schema in schemas]
    free = [completion(prompt=f"the {word}", max_tokens=12) for word in "abcdefgh"]
    alone = [await post(client, COMPLETIONS, body) for body in free]

    mixed = [body for pair in zip(constrained, free, strict=True) for body in pair]
    answers = await asyncio.gather(*(post(client, COMPLETIONS, body) for body in mixed))

    for schema, answer in zip(schemas, answers[::2], strict=True):
        jsonschema.validate(json.loads(answer["choices"][0]["text"]), schema)
    texts = [answer["choices"][0]["text"] for answer in answers[1::2]]
    assert texts == [answer["choices"][0]["text"] for answer in alone]


async def test_a_reference_to_itself_and_one_into_properties_are_followed(client: Client) -> None:
    pair = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "b": {"$ref": "#/properties/a"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    for schema in (NODE, pair):
        body = completion(response_format=as_format(schema), temperature=1.0, seed=3)
        [choice] = (await post(client, COMPLETIONS, body))["choices"]
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(choice["text"]), schema)


# -- refusals --------------------------------------------------------------------------------------

SCHEMA = "response_format.json_schema.schema"


@pytest.mark.parametrize(
    ("schema", "part"),
    [
        ({"type": "object", "properties": {"x": "y"}}, "#/properties/x"),
        ({"type": "not-a-type"}, "not-a-type"),
        ("x", "object, true or false"),
        (None, "object, true or false"),
        ({"type": "string", "pattern": "^(?=a)"}, "pattern"),
        ({"type": "string", "pattern": "(a)\\1"}, "pattern"),
        (
            {
                "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
                "$ref": "#/$defs/a",
            },
            "circle",
        ),
        ({"$ref": "#/$defs/missing"}, "missing"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "string", "maxLength": 2, "minLength": 3}, "minLength"),
        (False, "false"),
    ],
    ids=str,
)
async def test_a_schema_that_cannot_be_enforced_is_a_400_that_names_the_part(
    client: Client, schema: Any, part: str
) -> None:
    response = await client.post(CHAT, json=chat(response_format=as_format(schema), stream=True))
    error = (await response.json())["error"]

    assert response.status == 400, error
    assert (error["code"], error["param"]) == ("unsupported_grammar", SCHEMA)
    assert part in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.name",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"structured_outputs": {"jsn": {}}}, "structured_outputs.jsn"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": [""]}}, "structured_outputs.choice[0]"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs.regex"),
        ({"guided_json": {}, "response_format": as_format({})}, "guided_json"),
        ({"guided_regex": "a", "ebnf": 'root ::= "a"'}, "ebnf"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos"),
        ({"guided_regex": "a", "beam_width": 2}, "guided_regex"),
        ({"guided_regex": 5}, "guided_regex"),
        ({"guided_regex": "("}, "guided_regex"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": 5}, "guided_json"),
        ({"guided_grammar": "root ::= ("}, "guided_grammar"),
        ({"ebnf": "nonsense"}, "ebnf"),
    ],
    ids=str,
)
async def test_the_field_at_fault_is_named(
    client: Client, fields: dict[str, Any], param: str
) -> None:
    response = await client.post(COMPLETIONS, json=completion(**fields))
    error = (await response.json())["error"]

    assert response.status == 400, error
    assert error["param"] == param
    assert param.split("[")[0].split(".")[0] in error["message"]


async def test_a_pattern_with_an_odd_escape_is_enforced(client: Client) -> None:
    """llama.cpp #19051: answered with unconstrained text."""
    schema = {"type": "string", "pattern": r"^good day\!$"}
    body = completion(response_format=as_format(schema))

    assert (await post(client, COMPLETIONS, body))["choices"][0]["text"] == '"good day!"'


async def test_a_grammar_that_meets_a_limit_on_the_way_is_the_callers_400(client: Client) -> None:
    plain = await post(client, COMPLETIONS, completion())
    body = completion(guided_regex="(a{1,1000}){1,1000}", min_tokens=110)
    response, *others = await asyncio.gather(
        client.post(COMPLETIONS, json=body),
        *(post(client, COMPLETIONS, completion()) for _ in range(3)),
    )
    answer = await response.json()

    assert response.status == 400, answer
    assert answer["error"]["code"] == "grammar_limit"
    assert "too many expressions" in answer["error"]["message"]
    assert all(other["choices"] == plain["choices"] for other in others)
