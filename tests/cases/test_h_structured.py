"""Kind h: structured output.

Each test names the report it retells.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from tests.server.events import choices_of, post, stream, text_of

if TYPE_CHECKING:
    from tests.server.conftest import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
FREE = {"prompt": "the parrot", "temperature": 0, "max_tokens": 12}


def schema_format(schema: Any, **changes: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema} | changes}


def asking(schema: Any, **fields: Any) -> dict[str, Any]:
    """Return a call for a value under a schema."""
    body = {"prompt": "the parrot", "max_tokens": 100, "response_format": schema_format(schema)}
    return body | fields


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "wanted",
    [
        schema_format({"type": "object", "properties": {"x": "y"}}),
        schema_format({"type": "not-a-type"}),
        schema_format("x"),
        schema_format(None),
        {"type": "json_schema", "json_schema": {"schema": {"type": "integer"}}},
        {"type": "json_schema", "json_schema": {"name": "x"}},
        {"type": "json_schema"},
        {"type": "yaml"},
    ],
    ids=repr,
)
async def test_h1_what_is_no_schema_is_refused_and_hurts_nobody(
    wanted: dict[str, Any], stream: bool, client: Client
) -> None:
    """400 that names the fault, whoever is served meanwhile (TGI #2280, vllm #17248)."""
    body = {"messages": [{"role": "user", "content": "a"}], "response_format": wanted}
    refused, free = await asyncio.gather(
        client.post(CHAT, json={**body, "max_tokens": 20, "stream": stream}),
        post(client, COMPLETIONS, FREE),
    )
    error = (await refused.json())["error"]
    assert refused.status == 400
    assert error["param"].startswith("response_format")
    assert free["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize(
    ("pattern", "meaning"),
    [
        (r"^good day\!$", "good day!"),
        (r"^(?=a)a$", "a"),
        (r"^(?!b)[a-c]$", "[ac]"),
        (r"^(?<=a)b$", "(?!)"),
        (r"^(a|b)\1$", "aa|bb"),
        (r"^[a-c]{2,3}$", "[abc][abc][abc]?"),
        (r"^\u{1F99C}$", "🦜"),
        (r"^\p{Lu}$", "[A-Z]|[^a-z0-9]"),
        (r"^a++$", "a+"),
        ("^[", "(?!)"),
        ("(", "(?!)"),
    ],
)
async def test_h3_a_pattern_is_enforced_or_refused(
    pattern: str, meaning: str, client: Client
) -> None:
    """Never an answer that was not held to it (llama.cpp #19051)."""
    body = asking({"type": "string", "pattern": pattern}, seed=3, temperature=1.5)
    response = await client.post(COMPLETIONS, json=body)
    answer = await response.json()
    if response.status == 400:
        assert re.search("pattern|regex", answer["error"]["message"])
        return
    assert response.status == 200
    [choice] = answer["choices"]
    assert choice["finish_reason"] == "stop"
    assert re.fullmatch(meaning, json.loads(choice["text"]))


LINKED = {
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
POINTING = {
    "type": "object",
    "properties": {"a": {"type": "integer", "maximum": 99}, "b": {"$ref": "#/properties/a"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("schema", [LINKED, POINTING], ids=["recursive", "pointer"])
async def test_h5_references_to_anywhere_are_followed(
    schema: dict[str, Any], client: Client
) -> None:
    """Into $defs, into properties, and round in circles (outlines #310, imp PR#562)."""
    num_finished = 0
    for seed in range(6):
        [choice] = (await post(client, COMPLETIONS, asking(schema, seed=seed)))["choices"]
        if choice["finish_reason"] == "stop":
            jsonschema.validate(json.loads(choice["text"]), schema)
            num_finished += 1
    assert num_finished > 0


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}},
        {"$ref": "#"},
        {"$ref": "#/$defs/missing"},
        {"type": "object", "properties": {"a": {"$ref": "#/properties/nothing"}}},
    ],
    ids=["cycle", "itself", "missing", "nothing"],
)
async def test_h5_references_to_nothing_are_refused(schema: dict[str, Any], client: Client) -> None:
    """A circle that means nothing, and a target that is not there (outlines #310)."""
    response = await client.post(COMPLETIONS, json=asking(schema))
    error = (await response.json())["error"]
    assert response.status == 400
    assert error["param"].startswith("response_format")


def some_schema(dice: random.Random) -> dict[str, Any]:
    """Return an object's schema whose values all have short ends."""
    kinds: list[dict[str, Any]] = [
        {"type": "integer", "minimum": 0, "maximum": 9_999_999},
        {"type": "boolean"},
        {"enum": ["Paris", "Rome", "Par"]},
        {"type": "string", "maxLength": 4},
        {"const": "the same thing every time"},
        {"type": "array", "items": {"type": "integer", "maximum": 99}, "maxItems": 2},
    ]
    names = dice.sample(["city", "inhabitants", "a", "the parrot", "is_there", "é"], k=3)
    return {
        "type": "object",
        "properties": {name: dice.choice(kinds) for name in names},
        "required": names,
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in range(20, 100, 20))]
)
async def test_h7_forced_text_changes_no_value(first: int, client: Client) -> None:
    """With and without forced tokens, streamed and not, the JSON is the same (sglang #2045, #2025).

    Log-probabilities are told for each token, so with them none is forced.
    """
    num_forced = 0
    for seed in range(first, first + 20):
        schema = some_schema(random.Random(seed))
        body = asking(schema, temperature=0, return_token_ids=True)
        whole, single, chunks = await asyncio.gather(
            post(client, COMPLETIONS, body),
            post(client, COMPLETIONS, {**body, "logprobs": 0}),
            stream(client, COMPLETIONS, body),
        )
        [forced], [sampled] = whole["choices"], single["choices"]
        assert forced["finish_reason"] == sampled["finish_reason"]
        assert forced["text"] == sampled["text"]
        assert "".join(text_of(choice) for choice in choices_of(chunks, 0)) == forced["text"]
        usage, details = whole["usage"], whole["usage"]["completion_tokens_details"]
        assert usage["completion_tokens"] == single["usage"]["completion_tokens"]
        assert single["usage"]["completion_tokens_details"]["forced_tokens"] == 0
        num_forced += details["forced_tokens"]
        if forced["finish_reason"] == "stop":
            jsonschema.validate(json.loads(forced["text"]), schema)
    assert num_forced > 0


async def test_h9_each_request_and_each_choice_has_a_grammar_of_its_own(client: Client) -> None:
    """32 constrained requests among 32 free ones; nobody ends another early (outlines #757)."""
    schemas = [some_schema(random.Random(seed)) for seed in range(32)]
    free = [{**FREE, "prompt": [5 + i, 6, 7]} for i in range(32)]
    alone = [await post(client, COMPLETIONS, body) for body in free]
    bodies: list[dict[str, Any]] = []
    for i, schema in enumerate(schemas):
        bodies += [asking(schema, seed=i, n=1 + i % 2, max_tokens=150), free[i]]

    answers = await asyncio.gather(*(post(client, COMPLETIONS, body) for body in bodies))

    for i, schema in enumerate(schemas):
        for choice in answers[2 * i]["choices"]:
            assert choice["finish_reason"] == "stop"
            jsonschema.validate(json.loads(choice["text"]), schema)
        assert text_of(answers[2 * i + 1]["choices"][0]) == text_of(alone[i]["choices"][0])
