"""Calls as the bodies of an OpenAI-compatible API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.frontend.backends.protocol import GenCall
    from radixserve.frontend.constraint import Constraint
    from radixserve.frontend.pieces import Transcript, Turn

VALUE = "value"
"""The member that holds a value which is no object: the API takes schemas of objects only."""


def generation_body(call: GenCall, model: str) -> tuple[str, dict[str, Any]]:
    """Return the path and the body of a generation."""
    body: dict[str, Any] = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": call.max_tokens,
        "temperature": call.temperature,
        "top_p": call.top_p,
        "seed": call.seed,
    }
    if call.top_k:
        body["top_k"] = call.top_k  # not every server knows it; one that does not says so
    if call.stop:
        body["stop"] = list(call.stop)
    if (schema := object_schema(call.constraint)) is not None:
        named = {"name": "output", "schema": schema, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": named}
    if call.transcript.is_chat:
        return "/chat/completions", body | _chat_fields(call)
    if call.logprobs is not None:
        body["logprobs"] = call.logprobs
    return "/completions", body | {"prompt": str(call.transcript)}


def score_body(prompt: str, options: Sequence[str], model: str) -> dict[str, Any]:
    """Return the body that has each option's tokens told after the prompt's.

    One token is generated, for servers that cannot do with none; its place tells it from the rest.
    """
    return {
        "model": model,
        "prompt": [prompt + option for option in options],
        "max_tokens": 1,
        "temperature": 0.0,
        "echo": True,
        "logprobs": 1,
    }


def wraps_value(constraint: Constraint | None) -> bool:
    """Return whether the output is an object around the value that was asked for."""
    return constraint is not None and not _is_object(constraint)


def object_schema(constraint: Constraint | None) -> dict[str, Any] | None:
    """Return the schema of an output, as an object's."""
    if constraint is None:
        return None
    assert constraint.schema is not None, "what has none is refused before"
    schema = dict(constraint.schema)
    if _is_object(constraint):
        return schema
    wrapped: dict[str, Any] = {
        "type": "object",
        "properties": {VALUE: schema},
        "required": [VALUE],
        "additionalProperties": False,
    }
    for name in ("$defs", "definitions"):  # references to them begin at the root
        if name in schema:
            wrapped[name] = schema.pop(name)
    return wrapped


def _is_object(constraint: Constraint) -> bool:
    schema = constraint.schema or {}
    return schema.get("type") == "object"


def _chat_fields(call: GenCall) -> dict[str, Any]:
    fields: dict[str, Any] = {"messages": messages_of(call.transcript)}
    turn = call.transcript.open_turn
    if turn is not None and turn.parts:
        fields |= {"continue_final_message": True, "add_generation_prompt": False}
    if call.logprobs is not None:
        fields |= {"logprobs": True, "top_logprobs": call.logprobs}
    return fields


def messages_of(transcript: Transcript) -> list[dict[str, Any]]:
    """Return the turns; one that is open and empty is the server's to open."""
    turns = transcript.turns
    if turns[-1].is_open and not turns[-1].parts:
        turns = turns[:-1]
    return [_message(turn) for turn in turns]


def _message(turn: Turn) -> dict[str, Any]:
    message: dict[str, Any] = {"role": turn.role, "content": turn.text}
    if turn.tool_call_id:
        message["tool_call_id"] = turn.tool_call_id
    return message
