"""What each route says besides generated text: models, health, metrics, refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from radixserve.config import HttpConfig
from tests.server.conftest import MODEL, SHARED_CONTEXT_LEN
from tests.server.events import post

if TYPE_CHECKING:
    from tests.server.conftest import Client, ServeShared

pytestmark = pytest.mark.asyncio(loop_scope="session")

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
BODIES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "a", "max_tokens": 1},
    CHAT: {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1},
}


async def test_the_served_model_is_listed_and_described(client: Client) -> None:
    listed = await (await client.get("/v1/models")).json()
    described = await (await client.get(f"/v1/models/{MODEL}")).json()
    assert listed == {"object": "list", "data": [described]}
    assert (described["id"], described["object"]) == (MODEL, "model")
    assert described["max_model_len"] == SHARED_CONTEXT_LEN


@pytest.mark.parametrize("name", ["no-such-model", "org/no-such-model", "tiny/x"])
async def test_another_model_is_not_found(name: str, client: Client) -> None:
    response = await client.get(f"/v1/models/{name}")
    error = (await response.json())["error"]
    assert (response.status, error["code"], error["param"]) == (404, "model_not_found", "model")


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_for_another_model_is_not_found(
    path: str, stream: bool, client: Client
) -> None:
    body = {**BODIES[path], "model": "no-such-model", "stream": stream}
    response = await client.post(path, json=body)
    error = (await response.json())["error"]
    assert (response.status, error["code"], error["param"]) == (404, "model_not_found", "model")


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_bad_field_is_refused_before_anything_is_sent(
    path: str, stream: bool, client: Client
) -> None:
    response = await client.post(path, json={**BODIES[path], "stream": stream, "top_p": 2})
    error = (await response.json())["error"]
    assert response.status == 400
    assert response.content_type == "application/json"
    assert (error["type"], error["param"]) == ("invalid_request_error", "top_p")


@pytest.mark.parametrize("stream", [b"true", b"false"])
@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, b'"messages":[{"role":"user","content":"a\\ud800b"}]', "messages[0].content"),
        (
            CHAT,
            b'"messages":[{"role":"user","content":"a","name":"\\ud800"}]',
            "messages[0].name",
        ),
        (COMPLETIONS, b'"prompt":"a\\ud800b"', "prompt"),
        (COMPLETIONS, b'"prompt":"a","stop":["\\udfff"]', "stop[0]"),
    ],
)
async def test_half_a_character_is_refused_by_its_field(
    path: str, body: bytes, param: str, stream: bytes, client: Client
) -> None:
    response = await client.post(path, data=b'{"stream":' + stream + b"," + body + b"}")
    error = (await response.json())["error"]
    assert (response.status, error["param"]) == (400, param)
    assert "Error:" not in error["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": [5] * SHARED_CONTEXT_LEN}, "prompt"),
        ({"prompt": [[5], [5] * SHARED_CONTEXT_LEN]}, "prompt[1]"),
        ({"prompt": [5] * 10, "max_tokens": SHARED_CONTEXT_LEN - 9}, "max_tokens"),
        ({"prompt": "a tree " * SHARED_CONTEXT_LEN}, "prompt"),
    ],
)
async def test_what_does_not_fit_is_refused_before_anything_is_sent(
    fields: dict[str, Any], param: str, stream: bool, client: Client
) -> None:
    response = await client.post(COMPLETIONS, json={**fields, "stream": stream})
    error = (await response.json())["error"]
    assert (response.status, error["code"]) == (400, "context_length_exceeded")
    assert error["param"] == param
    assert str(SHARED_CONTEXT_LEN) in error["message"]


@pytest.mark.parametrize("prompt", [[5] * (SHARED_CONTEXT_LEN - 1), "a", [[1], [2]]])
async def test_a_default_output_length_never_makes_a_prompt_too_long(
    prompt: Any, client: Client
) -> None:
    answer = await post(client, COMPLETIONS, {"prompt": prompt, "ignore_eos": True})
    assert answer["usage"]["completion_tokens"] >= 1


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], ["a", ""]])
async def test_an_empty_prompt_hurts_nobody_else(prompt: Any, client: Client) -> None:
    response = await client.post(COMPLETIONS, json={"prompt": prompt, "max_tokens": 1})
    assert response.status in (200, 400)
    assert (await client.get("/health")).status == 200
    await post(client, COMPLETIONS, BODIES[COMPLETIONS])


@pytest.mark.parametrize("prompt", [[-1], [512], [5, 2**31 - 1], [[5], [512]]])
async def test_a_token_outside_the_vocabulary_is_refused(prompt: Any, client: Client) -> None:
    response = await client.post(COMPLETIONS, json={"prompt": prompt})
    error = (await response.json())["error"]
    assert response.status == 400
    assert error["param"].startswith("prompt")


async def test_a_template_that_refuses_is_the_callers_fault(client: Client) -> None:
    body = {
        "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": ""}}]}]
    }
    response = await client.post(CHAT, json=body)
    error = (await response.json())["error"]
    assert (response.status, error["code"]) == (400, "unsupported_parameter")
    assert error["param"].startswith("messages[0].content")


@pytest.mark.parametrize("path", ["/health", "/ready"])
async def test_a_running_server_is_healthy_and_ready(path: str, client: Client) -> None:
    assert (await client.get(path)).status == 200


async def test_metrics_are_prometheus_text(client: Client) -> None:
    await post(client, COMPLETIONS, BODIES[COMPLETIONS])
    response = await client.get("/metrics")
    assert response.status == 200
    assert response.headers["Content-Type"].startswith("text/plain; version=")
    assert "radixserve" in await response.text()


async def test_a_body_over_the_limit_is_refused(serve_shared: ServeShared) -> None:
    client = await serve_shared(HttpConfig(max_body_bytes=1024))
    response = await client.post(COMPLETIONS, json={"prompt": "a" * 2000})
    assert (response.status, (await response.json())["error"]["code"]) == (413, "request_too_large")


async def test_unknown_fields_pass_where_the_server_ignores_them(
    serve_shared: ServeShared, client: Client
) -> None:
    body = {**BODIES[COMPLETIONS], "colour": "blue"}
    lax = await serve_shared(HttpConfig(unknown_fields="ignore"))
    refused = await client.post(COMPLETIONS, json=body)
    assert (refused.status, (await refused.json())["error"]["param"]) == (400, "colour")
    assert (await lax.post(COMPLETIONS, json=body)).status == 200
