"""Chat messages as callers send them, made into what chat templates expect."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from radixserve.errors import InvalidRequestError, UnsupportedFeatureError

SAYS_WITHOUT_CONTENT = ("tool_calls", "function_call", "reasoning_content")
"""Fields of an assistant message that make its `content` optional."""


def normalize_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return new messages whose `content` is a string and which have no empty fields.

    Text parts are joined without a separator: a prompt holds nothing that its author did not write.
    Absent and null fields are the same, so the word "None" cannot get into a prompt. The arguments
    of tool calls become objects, because templates write them as JSON themselves.

    Raises:
        InvalidRequestError: A message has no role or no usable content; `param` names the field.
    Mutates: nothing.
    Source: abetlen/llama-cpp-python#1805.
    """
    if not messages:
        raise InvalidRequestError("There must be at least one message.", param="messages")
    return [_normalize_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _normalize_message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidRequestError(f"{where} must be an object.", param=where)
    result = {key: value for key, value in message.items() if value is not None}
    if not isinstance(result.get("role"), str):
        raise InvalidRequestError(f"{where} needs a role, as text.", param=f"{where}.role")
    if not result.get("tool_calls", True):
        del result["tool_calls"]
    result["content"] = _content_text(result, f"{where}.content")
    if "tool_calls" in result:
        result["tool_calls"] = _with_parsed_arguments(result["tool_calls"])
    return result


def _content_text(message: Mapping[str, Any], where: str) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "".join([_part_text(part, where) for part in content])
    if content is not None:
        raise InvalidRequestError(f"{where} must be text or a list of parts.", param=where)
    if message["role"] == "assistant" and any(field in message for field in SAYS_WITHOUT_CONTENT):
        return ""
    raise InvalidRequestError(f"{where} is missing.", param=where)


def _part_text(part: object, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or not isinstance(kind, str):
        raise InvalidRequestError(
            f"Each part of {where} must be an object with a type.", param=where
        )
    if kind != "text":
        raise UnsupportedFeatureError(
            f"{where} has a part of type {kind!r}; this server reads only parts of type 'text'.",
            param=where,
        )
    if not isinstance(part.get("text"), str):
        raise InvalidRequestError(f"A text part of {where} has no text.", param=where)
    return str(part["text"])


def _with_parsed_arguments(tool_calls: object) -> object:
    if not isinstance(tool_calls, Sequence) or isinstance(tool_calls, str):
        return tool_calls
    return [_with_object_arguments(call) for call in tool_calls]


def _with_object_arguments(call: object) -> object:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        return call
    arguments = _parse_object(function.get("arguments"))
    return {**call, "function": {**function, "arguments": arguments}}


def _parse_object(arguments: object) -> object:
    """Models also write malformed arguments; those stay the text that they are."""
    if not isinstance(arguments, str):
        return {} if arguments is None else arguments
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments
