"""OpenAI batch files: one request a line, all there at once.

    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": ...}}

A body has `messages`, or a `prompt` that is a string or a list of token ids. A line that is a
body itself is taken as well.

Source: https://platform.openai.com/docs/guides/batch
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixserve.replay.readers.pseudo_tokens import pseudo_tokens, render_messages
from radixserve.replay.readers.row import Row, read_rows
from radixserve.replay.trace import Trace, TraceRequest
from radixserve.types import ID_BYTES

if TYPE_CHECKING:
    from pathlib import Path

    from radixserve.types import PackedIds

DEFAULT_OUTPUT_LEN = 16


def read_openai_batch(path: Path) -> Trace:
    """Return the batch in the order of the file.

    Raises:
        ConfigError: a line is not such a request.
    """
    return Trace(path.name, tuple(map(_request, read_rows(path))))


def _request(row: Row) -> TraceRequest:
    body = row.fields.get("body", row.fields)
    if not isinstance(body, dict):
        raise row.error(f"body must be an object; got {body!r}")
    inner = Row(row.path, row.line, body)
    path = _prompt(inner)
    limit = "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
    return TraceRequest(
        arrival_s=0.0,
        path=path,
        prompt_len=len(path) // ID_BYTES,
        output_len=inner.length(limit, DEFAULT_OUTPUT_LEN),
        tenant=inner.text("user", ""),
        priority=int(inner.number("priority", 0)),
    )


def _prompt(body: Row) -> PackedIds:
    prompt: Any = body.fields.get("prompt")
    if isinstance(prompt, str):
        return pseudo_tokens(prompt)
    if isinstance(prompt, list):
        return body.pack(prompt, "prompt")
    try:
        return pseudo_tokens(render_messages([row.fields for row in body.rows("messages")]))
    except (KeyError, TypeError):
        raise body.error("a request has a prompt, or messages with role and content") from None
