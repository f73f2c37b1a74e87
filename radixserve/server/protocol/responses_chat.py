"""The Responses API's input in the words of the chat endpoint, which knows what to do with it.

instructions              a first message of role system
message                   a message
reasoning, function_call  join the assistant's message around them
function_call_output      a message of role tool
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixserve.server.protocol.chat import parse_chat
from radixserve.server.protocol.responses import NamedChoice
from radixserve.server.protocol.responses_items import (
    CallItem,
    CallOutputItem,
    MessageItem,
    ReasoningItem,
    text_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.server.protocol.chat import ChatRequest
    from radixserve.server.protocol.responses import FunctionTool, ResponsesRequest, TextFormat
    from radixserve.server.protocol.responses_items import Item

_SAME = (
    "model",
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "stream",
    "priority",
    "user",
    "cache_salt",
    "timeout_s",
    "chat_template_kwargs",
)


def chat_of(fields: ResponsesRequest) -> ChatRequest:
    """Return the chat that asks for the same.

    Raises:
        InvalidRequestError: what the items say together makes no chat.
    """
    body = {name: getattr(fields, name) for name in _SAME}
    body["max_completion_tokens"] = fields.max_output_tokens
    body["radix"] = fields.radix.model_dump()
    body["messages"] = [*_instructions_json(fields.instructions), *_messages_json(fields.items)]
    if fields.tools:
        body["tools"] = [_tool_json(tool) for tool in fields.tools]
        body["tool_choice"] = _choice_json(fields.tool_choice)
        body["parallel_tool_calls"] = fields.parallel_tool_calls
    if fields.text.format is not None:
        body["response_format"] = _format_json(fields.text.format)
    return parse_chat(body)


def _instructions_json(instructions: str | None) -> list[dict[str, Any]]:
    return [{"role": "system", "content": instructions}] if instructions else []


def _messages_json(items: Sequence[Item]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for item in items:
        if isinstance(item, CallOutputItem):
            text = text_of(item.output)
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": text})
        elif isinstance(item, MessageItem) and item.role != "assistant":
            messages.append({"role": item.role, "content": text_of(item.content)})
        else:
            _add_to_turn(_assistant_turn(messages), item)
    return messages


def _assistant_turn(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the assistant's message at the end of a list; begins one if there is none."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _add_to_turn(turn: dict[str, Any], item: Item) -> None:
    if isinstance(item, MessageItem):
        turn["content"] += text_of(item.content)
    elif isinstance(item, CallItem):
        function = {"name": item.name, "arguments": item.arguments}
        call = {"id": item.call_id, "type": "function", "function": function}
        turn["tool_calls"] = [*turn.get("tool_calls", []), call]
    elif isinstance(item, ReasoningItem) and item.text:
        turn["reasoning_content"] = turn.get("reasoning_content", "") + item.text


def _tool_json(tool: FunctionTool) -> dict[str, Any]:
    function = tool.model_dump(exclude={"type"}, exclude_none=True)
    return {"type": "function", "function": function}


def _choice_json(choice: str | NamedChoice) -> Any:
    if isinstance(choice, NamedChoice):
        return {"type": "function", "function": {"name": choice.name}}
    return choice


def _format_json(wanted: TextFormat) -> dict[str, Any]:
    if wanted.type != "json_schema":
        return {"type": wanted.type}
    schema = wanted.model_dump(exclude={"type"}, exclude_none=True, by_alias=True)
    return {"type": "json_schema", "json_schema": {"name": "output", **schema}}
