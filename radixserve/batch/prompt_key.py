"""What a request's prompt begins with, as bytes that sort as the prompts share.

Of two requests, the prompts have at least about as much in common as the keys. No model, tokenizer
or template is needed, so files for a server elsewhere are ordered as well. Nothing is checked: a
body that no route will take has a key like any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterator

    from radixserve.batch.line import BatchLine

_END = b"\x1f"
"""Ends a part; below every printable character."""
_ID_BYTES = 8


def prompt_key(line: BatchLine) -> bytes:
    """Return the sort key of a request: what may share KV is side by side, by its text.

    Complexity: O(length of the prompt).
    """
    body = line.body
    parts = _completion if line.url == "/v1/completions" else _conversation
    head = (body.get("model"), body.get("cache_salt"), parts is _conversation)
    return b"".join([_json(head), _END, *parts(body)])


def _completion(body: dict[str, Any]) -> Iterator[bytes]:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    yield _text(prompt) if isinstance(prompt, str) else _ids(prompt)


def _ids(prompt: Any) -> bytes:
    """Token ids sort as numbers do."""
    try:
        return b"\x00" + b"".join([token.to_bytes(_ID_BYTES, "big") for token in prompt])
    except (AttributeError, TypeError, OverflowError):
        return _json(prompt)


def _conversation(body: dict[str, Any]) -> Iterator[bytes]:
    """Templates put the tools first, or into the first message."""
    yield from (_json(body.get("tools")), _END)
    for name in ("system", "instructions"):
        if body.get(name):
            yield from _message({"role": "system", "content": body[name]})
    given = body.get("messages", body.get("input"))
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    for message in given if isinstance(given, list) else [given]:
        yield from _message(message)


def _message(message: Any) -> Iterator[bytes]:
    if not isinstance(message, dict):
        yield from (_json(message), _END)
        return
    yield from (_text(message.get("role")), b"\n")
    content = message.get("content")
    for part in content if isinstance(content, list) else [content]:
        yield _text(part.get("text", part) if isinstance(part, dict) else part)
    others = {
        name: value
        for name, value in message.items()
        if name not in ("role", "content") and value is not None
    }
    yield from (_json(others) if others else b"", _END)


def _text(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else _json(value)


def _json(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
