"""OpenAI's own client against the Responses API: answers, streams, input items and errors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

import openai
import pytest
import pytest_asyncio
from pydantic import BaseModel

from tests.server.conftest import MODEL
from tests.server.events import post

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.server.conftest import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")

BODY: dict[str, Any] = {"input": "the parrot said", "temperature": 0, "max_output_tokens": 12}
TOOL = {
    "type": "function",
    "name": "add",
    "description": "Adds.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "strict": False,
}


FLAG = {
    "type": "function",
    "name": "flag",
    "parameters": {
        "type": "object",
        "properties": {"on": {"enum": ["yes", "no"]}},
        "required": ["on"],
        "additionalProperties": False,
    },
    "strict": True,
}


@pytest_asyncio.fixture(loop_scope="session")
async def api(roomy_client: Client) -> AsyncIterator[openai.AsyncOpenAI]:
    url = str(roomy_client.make_url("/v1"))
    async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as api:
        yield api


async def test_a_response_streams_what_the_whole_says(api: openai.AsyncOpenAI) -> None:
    whole = await api.responses.create(model=MODEL, **BODY)
    stream = await api.responses.create(model=MODEL, stream=True, **BODY)
    events = [event async for event in stream]

    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    last = events[-1]
    assert last.type in ("response.completed", "response.incomplete")
    assert text == whole.output_text == last.response.output_text
    assert last.response.status == whole.status
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert whole.usage is not None
    assert last.response.usage is not None
    assert last.response.usage.total_tokens == whole.usage.total_tokens
    assert whole.store is False


async def test_the_events_come_in_their_order(api: openai.AsyncOpenAI) -> None:
    stream = await api.responses.create(model=MODEL, stream=True, **BODY)
    kinds = [event.type async for event in stream]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:-1] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}


class Flag(BaseModel):
    """What an answer is parsed into."""

    model_config = {"extra": "forbid"}
    on: Literal["yes", "no"]


async def test_the_text_keeps_to_its_schema_and_is_parsed(api: openai.AsyncOpenAI) -> None:
    parsed = await api.responses.parse(model=MODEL, input="the parrot said", text_format=Flag)
    assert parsed.status == "completed"
    assert parsed.output_parsed is not None
    assert parsed.output_parsed.on in ("yes", "no")


async def test_the_streaming_helper_builds_the_whole_answer(api: openai.AsyncOpenAI) -> None:
    body: dict[str, Any] = {"model": MODEL, "input": "the parrot said", "text_format": Flag}
    async with api.responses.stream(**body) as events:
        text = "".join(
            [event.delta async for event in events if event.type == "response.output_text.delta"]
        )
        final = await events.get_final_response()
    assert final.output_text == text
    assert final.output_parsed is not None


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "flag"}])
async def test_a_call_that_is_demanded_streams_as_an_item(
    api: openai.AsyncOpenAI, choice: Any
) -> None:
    body: dict[str, Any] = {
        "model": MODEL,
        "input": "the parrot said",
        "tools": [FLAG],
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "extra_body": {"seed": 5},
    }
    whole = await api.responses.create(**body)
    events = [event async for event in await api.responses.create(stream=True, **body)]

    [call] = whole.output
    assert call.type == "function_call"
    assert (call.name, call.status) == ("flag", "completed")
    assert json.loads(call.arguments)["on"] in ("yes", "no")
    pieces = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    [done] = [e for e in events if e.type == "response.function_call_arguments.done"]
    assert "".join(pieces) == done.arguments == call.arguments
    assert events[-1].type == "response.completed"
    assert "response.content_part.added" not in [event.type for event in events]


async def test_an_answer_that_was_cut_is_incomplete(roomy_client: Client) -> None:
    body = {**BODY, "max_output_tokens": 3, "seed": 1}
    answer = await post(roomy_client, "/v1/responses", body)
    is_cut = answer["usage"]["output_tokens"] == 3 and answer["status"] == "incomplete"
    assert is_cut is (answer["incomplete_details"] == {"reason": "max_output_tokens"})
    assert is_cut is (answer["completed_at"] is None)


async def test_the_second_call_reads_the_cache(roomy_client: Client) -> None:
    body = {**BODY, "instructions": "the order of the letters in the tree " * 3}
    await post(roomy_client, "/v1/responses", body)
    usage = (await post(roomy_client, "/v1/responses", body))["usage"]
    cached = usage["input_tokens_details"]["cached_tokens"]
    assert 16 <= cached < usage["input_tokens"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


async def test_items_say_what_chat_messages_say(roomy_client: Client) -> None:
    call = {"name": "add", "arguments": '{"a": 2}'}
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "2 plus 3?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "function_call", "call_id": "c1", "id": "fc_1", **call},
        {"type": "function_call_output", "call_id": "c1", "output": "5"},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Five.", "annotations": []}],
        },
        {"role": "user", "content": "So?"},
    ]
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2 plus 3?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c1", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "5"},
        {"role": "assistant", "content": "Five."},
        {"role": "user", "content": "So?"},
    ]
    body = {"temperature": 0, "max_output_tokens": 8, "tools": [TOOL]}
    response = await post(
        roomy_client, "/v1/responses", {**body, "input": items, "instructions": "Be brief."}
    )
    function = {name: TOOL[name] for name in ("name", "description", "parameters")}
    chat = await post(
        roomy_client,
        "/v1/chat/completions",
        {
            "temperature": 0,
            "max_tokens": 8,
            "messages": messages,
            "tools": [{"type": "function", "function": function}],
        },
    )
    text = "".join(part["text"] for item in response["output"] for part in item["content"])
    assert text == (chat["choices"][0]["message"]["content"] or "")
    assert response["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"include": ["message.output_text.logprobs"]}, "include[0]"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0]",
        ),
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"max_output_tokens": 100_000}, "max_tokens"),
        ({"max_output_token": 3}, "max_output_token"),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options"),
        ({"top_logprobs": 3}, "top_logprobs"),
    ],
)
async def test_what_is_not_supported_is_refused_by_name(
    roomy_client: Client, changes: dict[str, Any], param: str
) -> None:
    response = await roomy_client.post("/v1/responses", json={**BODY, **changes})
    error = (await response.json())["error"]
    assert (response.status, error["param"]) == (400, param)


async def test_what_asks_for_nothing_is_accepted(roomy_client: Client) -> None:
    body = {
        **BODY,
        "store": True,
        "background": False,
        "truncation": "disabled",
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "low"},
        "metadata": {"a": "b"},
        "text": {"format": {"type": "text"}, "verbosity": "low"},
        "prompt_cache_key": "k",
        "previous_response_id": None,
        "tool_choice": "auto",
    }
    answer = await post(roomy_client, "/v1/responses", body)
    assert answer["metadata"] == {"a": "b"}
    assert answer["store"] is False


async def test_errors_arrive_as_the_clients_own_classes(api: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as lost:
        await api.responses.create(model="no-such-model", input="a")
    assert (lost.value.code, lost.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as bad:
        await api.responses.create(model=MODEL, input="a", previous_response_id="resp_1")
    assert bad.value.param == "previous_response_id"


async def test_a_refusal_names_the_field_as_it_was_written(client: Client) -> None:
    schema = {"type": "json_schema", "name": "x", "schema": {"type": "x"}}
    response = await client.post("/v1/responses", json={"input": "a", "text": {"format": schema}})
    error = (await response.json())["error"]
    assert response.status == 400
    assert error["param"] == "text.format.schema"
    assert error["message"].startswith("text.format.schema")
