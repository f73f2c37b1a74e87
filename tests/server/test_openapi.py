"""``/openapi.json``: every route is in it, and no body that it allows makes the server fail.

The bodies are made by schemathesis; `HYPOTHESIS_PROFILE=ci` tries more of them.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.core import NOT_SET
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from radixserve.server.protocol.openapi import openapi_json
from radixserve.server.protocol.openapi_operations import OPERATIONS
from tests.server.events import post

if TYPE_CHECKING:
    from tests.server.conftest import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")

DESCRIPTION = openapi_json()
CHECKS = (
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
)
TIME_IS_UP = 504
"""What a caller who gives a request no time is told: not the server's fault."""
MAX_EXAMPLES = 40
"""For each operation: its bodies are as many kinds of things as its fields are."""

CHAT = [{"role": "user", "content": "the parrot said"}]
CALLS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "a"},
    "/v1/chat/completions": {"messages": CHAT},
    "/v1/responses": {"input": "a"},
    "/v1/messages": {"messages": CHAT, "max_tokens": 3},
    "/v1/messages/count_tokens": {"messages": CHAT},
    "/generate": {"text": ["a", "b"]},
    "/generate/forget": {"ids": ["a"]},
    "/v1/score": {"prompt": "a", "options": ["b", "c"]},
    "/tokenize": {"prompt": "a"},
    "/v1/tokenize": {"messages": CHAT},
    "/detokenize": {"tokens": [5]},
    "/v1/detokenize": {"tokens": []},
    "/cache/explain": {"prompt": "a"},
    "/cache/warm": {"prompt": "a"},
    "/cache/flush": {},
}


def paths_of(client: Client) -> set[tuple[str, str]]:
    """Return the method and path of every route of an application."""
    return {
        (route.method.lower(), re.sub(r":[^}]+", "", route.resource.canonical))
        for route in client.app.router.routes()
        if route.resource is not None and route.method not in ("HEAD", "OPTIONS", "*")
    }


def schema_of(path: str, method: str, status: str = "200") -> dict[str, Any]:
    """Return the schema of an answer, with what it refers to."""
    content = DESCRIPTION["paths"][path][method]["responses"][status]["content"]
    return {**content["application/json"]["schema"], "components": DESCRIPTION["components"]}


async def test_every_route_is_described(client: Client) -> None:
    described = {(method, path) for path, item in DESCRIPTION["paths"].items() for method in item}
    assert described == paths_of(client)


async def test_the_description_is_served(client: Client) -> None:
    response = await client.get("/openapi.json")
    assert response.status == 200
    assert await response.json() == DESCRIPTION


async def test_no_reference_leads_nowhere() -> None:
    def refs(value: Any) -> set[str]:
        if isinstance(value, dict):
            own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
            return own.union(*(refs(item) for item in value.values()))
        return set().union(*map(refs, value)) if isinstance(value, list) else set()

    names = {ref.removeprefix("#/components/schemas/") for ref in refs(DESCRIPTION)}
    assert names <= set(DESCRIPTION["components"]["schemas"])


@pytest.mark.parametrize("path", CALLS)
async def test_answers_are_as_described(client: Client, path: str) -> None:
    answer = await client.post(path, json=CALLS[path])
    body = await answer.json()
    assert answer.status == 200, body
    jsonschema.validate(body, schema_of(path, "post"))


@pytest.mark.parametrize("path", sorted(DESCRIPTION["paths"]))
async def test_errors_are_as_described(client: Client, path: str) -> None:
    if "post" in DESCRIPTION["paths"][path]:
        response = await client.post(re.sub(r"[{}]", "", path), data=b"{")
        assert response.status == 400
        jsonschema.validate(await response.json(), schema_of(path, "post", "4XX"))


async def test_a_body_that_is_refused_is_not_allowed_by_the_description(client: Client) -> None:
    body = {"prompt": "a", "options": ["b"], "normalization": "median"}
    [operation] = [one for one in OPERATIONS if one.path == "/v1/score"]
    assert operation.body is not None
    content = DESCRIPTION["paths"]["/v1/score"]["post"]["requestBody"]["content"]
    schema = {
        **content["application/json"]["schema"],
        "components": DESCRIPTION["components"],
    }
    jsonschema.validate({**body, "normalization": "mean", "priority": None}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(body, schema)
    await post(client, "/v1/score", {**body, "normalization": "mean", "priority": None})


def mixed(data: st.DataObject, path: str, body: Any) -> Any:
    """Return a body that is made up, or a good one with a few made-up fields: it gets further."""
    if path not in CALLS or not isinstance(body, dict) or data.draw(st.booleans()):
        return body
    names = data.draw(st.sets(st.sampled_from(sorted(body)), max_size=3)) if body else set()
    return {**CALLS[path], **{name: body[name] for name in names}}


def fuzz(url: str, path: str, method: str, num_examples: int) -> Counter[int]:
    """Call one operation with what its description allows; the server must not fail.

    Returns: how often each status came.
    """
    operation = schemathesis.openapi.from_dict(DESCRIPTION)[path][method]
    statuses = Counter[int]()

    @given(case=operation.as_strategy(), data=st.data())
    @settings(
        max_examples=num_examples,
        phases=[Phase.generate],
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def call(case: schemathesis.Case[Any], data: st.DataObject) -> None:
        if case.body is not NOT_SET:
            case.body = mixed(data, path, case.body)
        response = case.call(base_url=url, timeout=60)
        assert response.status_code < 500 or response.status_code == TIME_IS_UP, response.text
        is_stream = "text/event-stream" in str(response.headers.get("content-type"))
        # The description has no schema of events for a stream to be checked against.
        checks = CHECKS[:-1] if is_stream else CHECKS
        case.validate_response(response, checks=list(checks))
        statuses[response.status_code] += 1

    call()
    return statuses


@pytest.mark.parametrize(
    ("path", "method"), [(one.path, one.method) for one in OPERATIONS if one.body or one.query]
)
async def test_no_body_makes_the_server_fail(client: Client, path: str, method: str) -> None:
    url = str(client.make_url("")).rstrip("/")
    num_examples = min(settings().max_examples, MAX_EXAMPLES)
    statuses = await asyncio.to_thread(fuzz, url, path, method, num_examples)
    assert statuses.total() >= num_examples
    assert (await client.get("/health")).status == 200
