"""Anthropic's own client against a listening server: messages, streams, tokens and errors."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import anthropic
import orjson
import pytest
import pytest_asyncio

from radixserve.config import HttpConfig, KeyConfig
from tests.server.conftest import MODEL, SHARED_CONTEXT_LEN
from tests.server.events import post

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from anthropic.types import MessageParam

    from radixserve.engine.async_engine import AsyncEngine
    from radixserve.engine.request import GenerateRequest
    from tests.server.conftest import Client, ServeShared

pytestmark = pytest.mark.asyncio(loop_scope="session")

TURNS: list[MessageParam] = [{"role": "user", "content": "the parrot said"}]
TOOL = {
    "name": "add",
    "description": "Adds.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
FLAG = {
    "name": "flag",
    "input_schema": {
        "type": "object",
        "properties": {"on": {"enum": ["yes", "no"]}},
        "required": ["on"],
        "additionalProperties": False,
    },
}
GREEDY = {"temperature": 0}
BODY: dict[str, Any] = {"max_tokens": 12, "temperature": 0, "messages": TURNS}


@pytest_asyncio.fixture(loop_scope="session")
async def api(client: Client) -> AsyncIterator[anthropic.AsyncAnthropic]:
    url = str(client.make_url("/"))
    async with anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as api:
        yield api


@pytest_asyncio.fixture(loop_scope="session")
async def roomy_api(roomy_client: Client) -> AsyncIterator[anthropic.AsyncAnthropic]:
    url = str(roomy_client.make_url("/"))
    async with anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as api:
        yield api


async def events_of(client: Client, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events of a stream, each under its own name."""
    response = await client.post("/v1/messages", json={**body, "stream": True})
    raw = await response.read()
    assert response.status == 200, raw
    *events, rest = raw.split(b"\n\n")
    assert rest == b""
    parsed = []
    for event in events:
        name, data = event.split(b"\n")
        parsed.append(orjson.loads(data.removeprefix(b"data: ")))
        assert name == b"event: " + parsed[-1]["type"].encode()
    return parsed


async def test_a_message_streams_what_the_whole_says(api: anthropic.AsyncAnthropic) -> None:
    whole = await api.messages.create(
        model=MODEL, max_tokens=20, messages=TURNS, system="You are a parrot.", extra_body=GREEDY
    )
    async with api.messages.stream(
        model=MODEL, max_tokens=20, messages=TURNS, system="You are a parrot.", extra_body=GREEDY
    ) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        message = await stream.get_final_message()
    assert whole.content[0].type == "text"
    assert text == whole.content[0].text
    assert [block.text for block in message.content if block.type == "text"] == [text]
    assert message.stop_reason == whole.stop_reason
    assert message.usage.output_tokens == whole.usage.output_tokens
    assert whole.role == "assistant"
    assert whole.model == MODEL


async def test_the_events_come_in_their_order(client: Client) -> None:
    kinds = [event["type"] for event in await events_of(client, BODY)]
    middle = kinds[3:-3]
    assert kinds[:3] == ["message_start", "ping", "content_block_start"]
    assert set(middle) == {"content_block_delta"}
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


async def test_usage_counts_each_prompt_token_once(client: Client) -> None:
    body = {**BODY, "messages": [{"role": "user", "content": "a little parrot in the tree " * 4}]}
    count = await post(client, "/v1/messages/count_tokens", {"messages": body["messages"]})
    usages = [(await post(client, "/v1/messages", body))["usage"] for _ in range(2)]
    for usage in usages:
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] == count["input_tokens"]
        assert usage["cache_creation_input_tokens"] == 0
    assert usages[1]["cache_read_input_tokens"] >= 16


async def test_tokens_up_to_a_breakpoint_are_created_and_then_read(client: Client) -> None:
    text = "Once upon a time there was a breakpoint in the order of the letters " * 2
    system = [{"type": "text", "text": text, "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
    body = {**BODY, "system": system}
    count = await post(client, "/v1/messages/count_tokens", {"messages": TURNS, "system": system})
    first = (await post(client, "/v1/messages", body))["usage"]
    second = (await post(client, "/v1/messages", body))["usage"]

    assert first["cache_creation_input_tokens"] > 0
    assert first["cache_creation"]["ephemeral_1h_input_tokens"] > 0
    assert second["cache_read_input_tokens"] > first["cache_read_input_tokens"]
    assert second["cache_creation_input_tokens"] < 16
    for usage in (first, second):
        names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        assert sum(usage[name] for name in names) == count["input_tokens"]


async def test_a_stop_sequence_is_named(client: Client) -> None:
    text = (await post(client, "/v1/messages", {**BODY, "max_tokens": 30}))["content"][0]["text"]
    body = {**BODY, "max_tokens": 30, "stop_sequences": [text[4:7]]}
    answer = await post(client, "/v1/messages", body)
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", text[4:7])
    assert answer["content"][0]["text"] == text[: text.index(text[4:7])]
    delta = next(e for e in await events_of(client, body) if e["type"] == "message_delta")
    assert delta["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": text[4:7]}


async def test_the_end_says_what_was_too_short(client: Client) -> None:
    short = await post(client, "/v1/messages", {**BODY, "max_tokens": 2})
    assert short["stop_reason"] in ("max_tokens", "end_turn")
    assert short["usage"]["output_tokens"] <= 2
    full = await post(client, "/v1/messages", {**BODY, "max_tokens": 100_000, "seed": 1})
    counted = full["usage"]["output_tokens"]
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    total = counted + sum(full["usage"][name] for name in names)
    is_full = full["stop_reason"] == "model_context_window_exceeded"
    assert is_full is (total == SHARED_CONTEXT_LEN)


async def test_a_last_message_of_the_assistant_goes_on(client: Client) -> None:
    begun = [*TURNS, {"role": "assistant", "content": "the answer"}]
    counts = [
        (await post(client, "/v1/messages/count_tokens", {"messages": messages}))["input_tokens"]
        for messages in (TURNS, begun)
    ]
    answer = await post(client, "/v1/messages", {**BODY, "messages": begun})
    assert counts[0] < counts[1] <= counts[0] + 4
    assert answer["role"] == "assistant"


async def test_calls_and_their_results_go_back_in(
    roomy_api: anthropic.AsyncAnthropic,
) -> None:
    messages: list[Any] = [
        {"role": "user", "content": "2 plus 3?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Add them.", "signature": ""},
                {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 2}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "5", "is_error": False},
                {"type": "text", "text": "So?"},
            ],
        },
    ]
    counted = await roomy_api.messages.count_tokens(
        model=MODEL,
        messages=messages,
        tools=[TOOL],  # type: ignore[list-item]
    )
    answer = await roomy_api.messages.create(
        model=MODEL,
        messages=messages,
        tools=[TOOL],  # type: ignore[list-item]
        max_tokens=3,
    )
    usage = answer.usage
    assert usage.cache_read_input_tokens is not None
    assert usage.input_tokens + usage.cache_read_input_tokens == counted.input_tokens


@pytest.mark.parametrize(
    ("changes", "status", "kind", "mentions"),
    [
        ({"model": "no-such-model"}, 404, "not_found_error", "no-such-model"),
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens"),
        ({"messages": []}, 400, "invalid_request_error", "messages"),
        ({"thinking": {"type": "enabled"}}, 400, "invalid_request_error", "thinking"),
        ({"top_p": 2}, 400, "invalid_request_error", "top_p"),
        ({"max_token": 3}, 400, "invalid_request_error", "max_tokens"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, 400, "invalid_request_error", ""),
        ({"mcp_servers": [{"type": "url"}]}, 400, "invalid_request_error", "mcp_servers"),
        ({"tool_choice": {"type": "any"}}, 400, "invalid_request_error", "tool_choice"),
        (
            {"messages": [{"role": "user", "content": "many words " * 400}]},
            400,
            "invalid_request_error",
            "context",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            400,
            "invalid_request_error",
            "image",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_errors_come_in_anthropics_envelope(
    client: Client, changes: dict[str, Any], status: int, kind: str, mentions: str, *, stream: bool
) -> None:
    response = await client.post("/v1/messages", json={**BODY, "stream": stream, **changes})
    answer = await response.json()
    assert response.status == status
    assert answer["type"] == "error"
    assert answer["error"]["type"] == kind
    assert mentions in answer["error"]["message"]


async def test_the_clients_own_error_classes(api: anthropic.AsyncAnthropic) -> None:
    with pytest.raises(anthropic.NotFoundError):
        await api.messages.create(model="no-such-model", max_tokens=3, messages=TURNS)
    with pytest.raises(anthropic.BadRequestError):
        await api.messages.create(model=MODEL, max_tokens=0, messages=TURNS)


CHOICES: list[dict[str, Any]] = [
    {"type": "any"},
    {"type": "tool", "name": "add"},
    {"type": "any", "disable_parallel_tool_use": True},
]


@pytest.mark.parametrize("choice", CHOICES)
async def test_a_call_that_is_demanded_streams_as_a_block(
    roomy_api: anthropic.AsyncAnthropic, choice: dict[str, Any]
) -> None:
    body: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": 120,
        "messages": TURNS,
        "tools": [FLAG],
        "tool_choice": choice if choice["type"] != "tool" else {**choice, "name": "flag"},
        "extra_body": {"temperature": 1, "seed": 5},
    }
    whole = await roomy_api.messages.create(**body)
    async with roomy_api.messages.stream(**body) as stream:
        async for _ in stream:
            pass
        message = await stream.get_final_message()

    assert whole.stop_reason == message.stop_reason
    assert whole.stop_reason in ("tool_use", "max_tokens")
    assert len(whole.content) == len(message.content) >= 1
    for block, streamed in zip(whole.content, message.content, strict=True):
        assert block.type == streamed.type == "tool_use"
        assert (block.name, block.input) == (streamed.name, streamed.input)
        assert block.input.get("on") in ("yes", "no", None)
    if choice != {"type": "any"}:
        assert len(whole.content) == 1


async def test_the_text_keeps_to_its_schema(roomy_client: Client) -> None:
    config = {"format": {"type": "json_schema", "schema": FLAG["input_schema"]}}
    body = {**BODY, "max_tokens": 60, "output_config": config}
    answer = await post(roomy_client, "/v1/messages", body)
    assert answer["stop_reason"] == "end_turn"
    assert orjson.loads(answer["content"][0]["text"])["on"] in ("yes", "no")


async def test_disabled_thinking_and_metadata_change_nothing(client: Client) -> None:
    plain = await post(client, "/v1/messages", BODY)
    more = await post(
        client,
        "/v1/messages",
        {**BODY, "thinking": {"type": "disabled"}, "metadata": {"user_id": "u"}},
    )
    assert plain["content"] == more["content"]


async def test_a_breakpoint_becomes_a_hint(
    client: Client, shared_engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[GenerateRequest] = []
    submit = shared_engine.submit

    def note(request: GenerateRequest) -> Any:
        seen.append(request)
        return submit(request)

    monkeypatch.setattr(shared_engine, "submit", note)
    mark = {"cache_control": {"type": "ephemeral"}}
    last = [{"role": "user", "content": [{"type": "text", "text": "the parrot said", **mark}]}]
    await post(client, "/v1/messages", {**BODY, "messages": last})
    system = [{"type": "text", "text": "the order of the letters", **mark}]
    await post(client, "/v1/messages", {**BODY, "system": system})
    await post(client, "/v1/messages", {**BODY, "cache_control": {"type": "ephemeral"}})
    await post(client, "/v1/messages", BODY)

    whole, prefix, automatic, none = (request.hint for request in seen)
    assert (whole.hold_s, whole.keep.value) == (300.0, "all")
    assert (prefix.hold_s, prefix.keep.value) == (300.0, "prefix")
    assert 0 < prefix.prefix_len < len(seen[1].prompt_ids)
    assert automatic == whole
    assert none == dataclasses.replace(none, hold_s=0.0, prefix_len=0)


async def test_the_clients_way_of_showing_a_key_is_known(serve_shared: ServeShared) -> None:
    closed = await serve_shared(HttpConfig(keys=KeyConfig(api_keys=("sk-test",))))
    url = str(closed.make_url("/"))
    async with anthropic.AsyncAnthropic(base_url=url, api_key="sk-test", max_retries=0) as api:
        counted = await api.messages.count_tokens(model=MODEL, messages=TURNS)
    assert counted.input_tokens > 0
    async with anthropic.AsyncAnthropic(base_url=url, api_key="sk-no", max_retries=0) as api:
        with pytest.raises(anthropic.AuthenticationError) as refused:
            await api.messages.count_tokens(model=MODEL, messages=TURNS)
    assert isinstance(refused.value.body, dict)
    assert refused.value.body["error"]["type"] == "authentication_error"


async def test_a_refusal_names_a_tools_schema_as_it_was_written(client: Client) -> None:
    body = {
        "messages": [{"role": "user", "content": "a"}],
        "max_tokens": 4,
        "tools": [{"name": "add", "input_schema": {"type": "string"}}],
    }
    response = await client.post("/v1/messages", json=body)
    error = (await response.json())["error"]
    assert response.status == 400
    assert error["message"].startswith("tools[0].input_schema")
