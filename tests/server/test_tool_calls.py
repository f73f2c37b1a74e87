"""Tools over HTTP with a random model: a grammar makes it call, and clients read the calls."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, Literal

import jsonschema
import openai
import pytest
import pytest_asyncio
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk
from pydantic import BaseModel

from radixserve.config import HttpConfig
from radixserve.server.app import build_app
from tests.kit.running import running
from tests.kit.scripted_sampler import Script
from tests.kit.tiny_tokenizer import (
    CHATML,
    SPECIAL_TOKENS,
    train_tiny_tokenizer,
    write_tiny_tokenizer,
)
from tests.server.conftest import MODEL, connected
from tests.server.events import choices_of, post, stream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from radixserve.config import EngineConfig
    from radixserve.engine.async_engine import AsyncEngine
    from tests.server.conftest import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "hi"}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"enum": [1, 23]}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "add", "description": "x", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now"}},
]
NAMED = {"type": "function", "function": {"name": "add"}}

ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": true}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
ANSWERS = {
    1001: f"I add.\n{ADD}\n{NOW}",
    1002: NOW,
    1003: "<tool_call>\nI will not.\n</tool_call>",
    1004: "No <tool> is needed. 🦜",
    1005: ADD[:60],
}
CALLS: dict[int, tuple[str | None, list[str], str]] = {
    1001: ("I add.", ["add", "now"], "tool_calls"),
    1002: (None, ["now"], "tool_calls"),
    1003: (ANSWERS[1003], [], "stop"),
    1004: (ANSWERS[1004], [], "stop"),
    1005: (None, ["add"], "tool_calls"),
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def engine(engine_config: EngineConfig) -> AsyncIterator[AsyncEngine]:
    """Return an engine whose context is long enough for descriptions of tools, and which says
    each of `ANSWERS` if its number is the seed."""
    async with running(engine_config) as engine:
        end = min(engine.core.eos_token_ids)
        encode = engine.tokenizer.encode
        Script(engine.core, {seed: [*encode(text), end] for seed, text in ANSWERS.items()})
        yield engine


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def client(engine: AsyncEngine) -> AsyncIterator[Client]:
    async with connected(build_app(engine, HttpConfig())) as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def api(client: Client) -> AsyncIterator[openai.AsyncOpenAI]:
    url = str(client.make_url("/v1"))
    async with openai.AsyncOpenAI(base_url=url, api_key="-", max_retries=0) as api:
        yield api


def asking(**fields: Any) -> dict[str, Any]:
    defaults = {"messages": [USER], "tools": TOOLS, "seed": 5, "max_tokens": 600}
    return {**defaults, **fields}


def rebuilt(chunks: list[dict[str, Any]], index: int) -> dict[str, Any]:
    """Return the message that OpenAI's own client makes of one choice's chunks."""
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    for chunk in chunks:
        choices = [{**one, "index": 0} for one in choices_of([chunk], index)]
        list(state.handle_chunk(ChatCompletionChunk.model_validate({**chunk, "choices": choices})))
    choice = state.current_completion_snapshot.choices[0]
    calls = choice.message.tool_calls or []
    return {
        "content": choice.message.content,
        "calls": [(call.function.name, call.function.arguments) for call in calls],
        "finish_reason": choice.finish_reason,
    }


def told(choice: dict[str, Any]) -> dict[str, Any]:
    """Return the same of a whole choice."""
    calls = choice["message"].get("tool_calls", [])
    return {
        "content": choice["message"]["content"],
        "calls": [(call["function"]["name"], call["function"]["arguments"]) for call in calls],
        "finish_reason": choice["finish_reason"],
    }


@pytest.mark.parametrize("seed", range(6))
async def test_demanded_calls_are_valid(client: Client, seed: int) -> None:
    answer = await post(client, CHAT, asking(tool_choice="required", seed=seed, max_tokens=1000))
    [choice] = answer["choices"]
    calls = choice["message"]["tool_calls"]
    assert choice["message"]["content"] is None
    assert len({call["id"] for call in calls}) == len(calls) > 0
    if choice["finish_reason"] == "length":
        calls.pop()
    else:
        assert choice["finish_reason"] == "tool_calls"
    schemas = {"add": SCHEMA, "now": {"type": "object", "maxProperties": 0}}
    for call in calls:
        assert (call["type"], len(call["id"])) == ("function", 29)
        arguments = json.loads(call["function"]["arguments"])
        jsonschema.validate(arguments, schemas[call["function"]["name"]])


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "required"},
        {"tool_choice": "required", "n": 3},
        {"tool_choice": "required", "max_tokens": 40},
        {"tool_choice": NAMED},
        {"tool_choice": "auto", "max_tokens": 40},
        {"tool_choice": "auto", "response_format": {"type": "json_object"}, "max_tokens": 60},
        {"tool_choice": "none", "max_tokens": 40},
    ],
)
async def test_the_stream_adds_up_to_the_whole(client: Client, fields: dict[str, Any]) -> None:
    whole = await post(client, CHAT, asking(**fields))
    chunks = await stream(client, CHAT, asking(**fields))
    for choice in whole["choices"]:
        assert rebuilt(chunks, choice["index"]) == told(choice)
        ends = [one for one in choices_of(chunks, choice["index"]) if one["finish_reason"]]
        assert len(ends) == 1


@pytest.mark.parametrize("seed", ANSWERS)
async def test_calls_that_the_model_makes_by_itself_are_found(client: Client, seed: int) -> None:
    """Source: sgl-project/sglang#5661, #6310."""
    whole = await post(client, CHAT, asking(seed=seed))
    chunks = await stream(client, CHAT, asking(seed=seed))
    content, names, reason = CALLS[seed]
    [choice] = whole["choices"]
    said = told(choice)
    assert (said["content"], [name for name, _ in said["calls"]]) == (content, names)
    assert choice["finish_reason"] == reason
    assert rebuilt(chunks, 0) == said


async def test_with_the_choice_none_whatever_the_model_says_is_text(client: Client) -> None:
    answer = await post(client, CHAT, asking(seed=1002, tool_choice="none"))
    assert answer["choices"][0]["message"]["content"] == NOW


async def test_a_named_function_is_called_once_and_that_is_a_stop(client: Client) -> None:
    answer = await post(client, CHAT, asking(tool_choice=NAMED))
    [choice] = answer["choices"]
    [call] = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "add"
    assert choice["finish_reason"] == "stop"
    jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMA)


@pytest.mark.parametrize("seed", range(4))
async def test_without_parallel_calls_one_comes(client: Client, seed: int) -> None:
    answer = await post(
        client, CHAT, asking(tool_choice="required", parallel_tool_calls=False, seed=seed)
    )
    [choice] = answer["choices"]
    assert len(choice["message"]["tool_calls"]) == 1
    assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("seed", range(4))
async def test_beside_tools_the_text_may_be_held_to_a_schema(client: Client, seed: int) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    answer = await post(client, CHAT, asking(response_format=wanted, seed=seed))
    [choice] = answer["choices"]
    message = choice["message"]
    if message["content"] is None:
        assert (len(message["tool_calls"]), choice["finish_reason"]) == (1, "tool_calls")
    else:
        jsonschema.validate(json.loads(message["content"]), SCHEMA)
        assert choice["finish_reason"] == "stop"


async def test_the_result_of_a_call_goes_back_in_and_finds_its_prefix(client: Client) -> None:
    first = await post(client, CHAT, asking(tool_choice=NAMED))
    message = first["choices"][0]["message"]
    [call] = message["tool_calls"]
    result = {"role": "tool", "tool_call_id": call["id"], "content": "24"}
    second = await post(client, CHAT, asking(messages=[USER, message, result], max_tokens=5))
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= first["usage"]["prompt_tokens"] - 1


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}])
async def test_a_turn_of_calls_needs_no_content(client: Client, content: dict[str, Any]) -> None:
    """Source: abetlen/llama-cpp-python#1805."""
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
    turn = {"role": "assistant", "tool_calls": [call], **content}
    result = {"role": "tool", "tool_call_id": "c1", "content": "5"}
    answer = await post(client, CHAT, {"messages": [USER, turn, result], "max_tokens": 1})
    same = await post(
        client, CHAT, {"messages": [USER, {**turn, "content": ""}, result], "max_tokens": 1}
    )
    assert answer["usage"]["prompt_tokens"] == same["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {
            "type": "object", "properties": {"x": "y"}}}}], "tool_choice": "required"}, "tools"),
        ({"tool_choice": "required", "beam_width": 2}, "tools"),
        ({"tool_choice": "required", "ignore_eos": True}, "ignore_eos"),
        ({"regex": "a+"}, "tools"),
    ],
)  # fmt: skip
async def test_what_cannot_be_enforced_is_refused(
    client: Client, fields: dict[str, Any], param: str
) -> None:
    response = await client.post(CHAT, json=asking(**fields))
    error = (await response.json())["error"]
    assert (response.status, error["param"]) == (400, param), error


async def test_log_probabilities_of_a_stream_add_up_to_the_whole(client: Client) -> None:
    body = asking(tool_choice=NAMED, logprobs=True, top_logprobs=2)
    whole = await post(client, CHAT, body)
    chunks = await stream(client, CHAT, body)
    content = whole["choices"][0]["logprobs"]["content"]
    streamed = [
        entry
        for choice in choices_of(chunks, 0)
        for entry in (choice["logprobs"] or {"content": []})["content"]
    ]
    assert [entry["token"] for entry in streamed] == [entry["token"] for entry in content]
    assert "".join(entry["token"] for entry in content).startswith('<tool_call>\n{"name": "add"')
    assert all(len(entry["top_logprobs"]) == 2 for entry in content)


# -- the official client ---------------------------------------------------------------------------


class Add(BaseModel):
    """Adds."""

    a: Literal[1, 23]
    b: bool


async def test_the_clients_parser_reads_calls(api: openai.AsyncOpenAI) -> None:
    answer = await api.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": "hi"}],
        tools=[openai.pydantic_function_tool(Add)],
        tool_choice="required",
        parallel_tool_calls=False,
        seed=1,
    )
    [call] = answer.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Add)


async def test_the_clients_parser_reads_structured_text(api: openai.AsyncOpenAI) -> None:
    answer = await api.chat.completions.parse(
        model=MODEL, messages=[{"role": "user", "content": "hi"}], response_format=Add, seed=1
    )
    assert isinstance(answer.choices[0].message.parsed, Add)


async def test_the_clients_stream_helper_builds_the_whole_answer(api: openai.AsyncOpenAI) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": [USER],
        "tools": [openai.pydantic_function_tool(Add)],
        "tool_choice": "required",
        "seed": 2,
        "max_tokens": 1000,
    }
    whole = await api.chat.completions.create(**asked)
    async with api.chat.completions.stream(**asked) as events:
        kinds = {event.type async for event in events}
        answer = await events.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds
    calls = [
        [
            (call.function.name, call.function.arguments)
            for call in one.choices[0].message.tool_calls or []
        ]
        for one in (whole, answer)
    ]
    assert calls[0] == calls[1]
    assert answer.choices[0].finish_reason == whole.choices[0].finish_reason


# -- other templates -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "first", "id_len"),
    [
        (CHATML + "{# [TOOL_CALLS] tools #}", '[TOOL_CALLS][{"name": "', 9),
        (CHATML + "{# [TOOL_CALLS] [ARGS] tools #}", "[TOOL_CALLS]", 9),
        (CHATML + "{# <|python_tag|> tools #}", '{"name": "', 29),
    ],
)
async def test_models_of_other_families_call_in_their_own_way(
    tmp_path: Path, engine_config: EngineConfig, template: str, first: str, id_len: int
) -> None:
    folder = with_template(tmp_path, engine_config, template)
    async with (
        running(with_model(engine_config, folder)) as engine,
        connected(build_app(engine, HttpConfig())) as client,
    ):
        body = asking(tool_choice="required", return_token_ids=True)
        [choice] = (await post(client, CHAT, body))["choices"]
        written = engine.tokenizer.decode(choice["token_ids"], skip_special_tokens=False)
        assert written.startswith(first)
        assert choice["message"]["content"] is None
        for call in choice["message"]["tool_calls"]:
            assert len(call["id"]) == id_len
            assert json.loads(call["function"]["arguments"]) is not None
        assert rebuilt(await stream(client, CHAT, asking(tool_choice="required")), 0) == told(
            choice
        )


async def test_thoughts_are_told_apart(tmp_path: Path, engine_config: EngineConfig) -> None:
    opened = CHATML.replace("assistant\\n'", "assistant\\n<think>\\n'")
    folder = with_template(tmp_path, engine_config, opened)
    body = {"messages": [USER], "regex": "\nSo\\.\n</think>\n\nHi\\."}
    async with (
        running(with_model(engine_config, folder)) as engine,
        connected(build_app(engine, HttpConfig())) as client,
    ):
        [choice] = (await post(client, CHAT, body))["choices"]
        chunks = await stream(client, CHAT, body)
    message = choice["message"]
    assert (message["reasoning_content"], message["content"]) == ("So.", "Hi.")
    deltas = [one["delta"] for one in choices_of(chunks, 0)]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "So."
    assert "".join(delta.get("content") or "" for delta in deltas) == "Hi."


def with_template(folder: Path, config: EngineConfig, template: str) -> Path:
    """Write the tiny model with another template, and with Mistral's and Llama's markers."""
    write_tiny_tokenizer(folder, chat_template=template)
    markers = ("[TOOL_CALLS]", "[ARGS]", "<|python_tag|>")
    train_tiny_tokenizer((*SPECIAL_TOKENS, *markers)).save(str(folder / "tokenizer.json"))
    for name in ("config.json", "model.safetensors"):
        (folder / name).symlink_to(f"{config.model.model}/{name}")
    return folder


def with_model(config: EngineConfig, folder: Path) -> EngineConfig:
    return dataclasses.replace(config, model=dataclasses.replace(config.model, model=str(folder)))
