"""One line of a server-sent event stream of completions or of a chat, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from radixserve.bench.target import Failure, TokenCounts

DONE = b"[DONE]"
_SHOWN_LEN = 300


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """What one event adds to an answer."""

    text: str = ""
    token_ids: tuple[int, ...] = ()
    counts: TokenCounts | None = None
    failure: Failure | None = None
    is_last: bool = False


def parse_line(line: bytes) -> StreamEvent | None:
    """Return what a line says, None where it says nothing.

    Raises:
        ValueError: it is data, but no JSON object.
    """
    if not line.startswith(b"data:"):
        return None
    data = line[5:].strip()
    if data == DONE:
        return StreamEvent(is_last=True)
    event = orjson.loads(data)
    if not isinstance(event, dict):
        raise ValueError(f"an event is no object: {data[:_SHOWN_LEN]!r}")
    if event.get("error"):
        return StreamEvent(failure=Failure("error in stream", str(event["error"])[:_SHOWN_LEN]))
    text = ""
    token_ids: list[int] = []
    for choice in event.get("choices") or ():
        text += _text(choice)
        token_ids += choice.get("token_ids") or ()
    return StreamEvent(text, tuple(token_ids), counts_of(event.get("usage")))


def counts_of(usage: dict[str, Any] | None) -> TokenCounts | None:
    """Return the counts of a usage object, None if there is none."""
    if not usage:
        return None
    details = usage.get("prompt_tokens_details") or {}
    return TokenCounts(
        usage.get("prompt_tokens"), details.get("cached_tokens"), usage.get("completion_tokens")
    )


def _text(choice: dict[str, Any]) -> str:
    """Return the text of a completion, or what a chat says or thinks."""
    if choice.get("text"):
        return str(choice["text"])
    delta = choice.get("delta") or {}
    thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
    return f"{thought}{delta.get('content') or ''}"
