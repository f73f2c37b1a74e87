"""The answer of ``POST /v1/messages``: content blocks, as events or as one message.

message_start  ping
content_block_start  content_block_delta ...  content_block_stop      for each block
message_delta  message_stop
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from radixserve.server.protocol.answer_parts import AnswerPart
from radixserve.text.tool_calls.events import CallStart, ReasoningPiece
from radixserve.types import FinishReason

if TYPE_CHECKING:
    from radixserve.engine.request import TextDelta, Usage
    from radixserve.server.protocol.messages_blocks import CacheControl
    from radixserve.text.answer_reader import AnswerReader
    from radixserve.text.tool_calls.events import AnswerEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFacts:
    """What is known of an answer before the model has said anything.

    Attributes:
        message_id: ``msg_...``.
        is_cut_by_context: Whether fewer tokens fit in the context than were asked for.
        marked_len: Tokens of the prompt up to its last breakpoint; 0 without one.
        mark: The breakpoint.
    """

    message_id: str
    model: str
    is_cut_by_context: bool = False
    marked_len: int = 0
    mark: CacheControl | None = None


class MessageWriter:
    """Writes one message.

    Args:
        reader: Tells text, thoughts and calls apart.
    """

    def __init__(self, facts: MessageFacts, reader: AnswerReader) -> None:
        self._facts = facts
        self._reader = reader
        self._usage: Usage | None = None
        self._parts: list[AnswerPart] = []
        self._stop: dict[str, Any] = {"stop_reason": None, "stop_sequence": None}

    def push(self, delta: TextDelta) -> list[dict[str, Any]]:
        """Return the events that a delta makes. Mutates: the writer."""
        events = [] if self._usage is not None else self._opening(delta.usage)
        self._usage = delta.usage
        for piece in self._reader.push(delta.text):
            events += self._add(piece)
        if delta.finish_reason is not None:
            events += self._ending(delta, delta.finish_reason)
        return events

    def whole(self) -> dict[str, Any]:
        """Return the complete message."""
        assert self._usage is not None
        content = [_block_json(part) for part in self._parts]
        return {**self._message(content, self._usage), **self._stop}

    def _opening(self, usage: Usage) -> list[dict[str, Any]]:
        message = self._message([], usage)
        return [{"type": "message_start", "message": message}, {"type": "ping"}]

    def _message(self, content: list[dict[str, Any]], usage: Usage) -> dict[str, Any]:
        return {
            "id": self._facts.message_id,
            "type": "message",
            "role": "assistant",
            "model": self._facts.model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage_json(usage, self._facts),
        }

    def _add(self, piece: AnswerEvent) -> list[dict[str, Any]]:
        events = []
        if not self._parts or not self._parts[-1].takes(piece):
            events += self._close()
            self._parts.append(AnswerPart(piece))
            events.append(self._event("start", content_block=_block_json(self._parts[-1])))
        text = self._parts[-1].add(piece)
        return [*events, self._event("delta", delta=_delta_json(self._parts[-1], text))]

    def _close(self) -> list[dict[str, Any]]:
        return [self._event("stop")] if self._parts else []

    def _event(self, what: str, **content: Any) -> dict[str, Any]:
        return {"type": f"content_block_{what}", "index": len(self._parts) - 1, **content}

    def _ending(self, delta: TextDelta, reason: FinishReason) -> list[dict[str, Any]]:
        events = [event for piece in self._reader.flush() for event in self._add(piece)]
        events += self._close()
        self._stop = self._stop_of(delta, reason)
        usage = usage_json(delta.usage, self._facts)
        events.append({"type": "message_delta", "delta": self._stop, "usage": usage})
        return [*events, {"type": "message_stop"}]

    def _stop_of(self, delta: TextDelta, reason: FinishReason) -> dict[str, Any]:
        if reason is not FinishReason.STOP:
            is_full = self._facts.is_cut_by_context and reason is FinishReason.LENGTH
            name = "model_context_window_exceeded" if is_full else "max_tokens"
            return {"stop_reason": name, "stop_sequence": None}
        if isinstance(delta.stop_reason, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": delta.stop_reason}
        name = "tool_use" if self._reader.num_calls else "end_turn"
        return {"stop_reason": name, "stop_sequence": None}


def _delta_json(part: AnswerPart, text: str) -> dict[str, Any]:
    if isinstance(part.first, CallStart):
        return {"type": "input_json_delta", "partial_json": text}
    if isinstance(part.first, ReasoningPiece):
        return {"type": "thinking_delta", "thinking": text}
    return {"type": "text_delta", "text": text}


def _block_json(part: AnswerPart) -> dict[str, Any]:
    first = part.first
    if isinstance(first, CallStart):
        arguments = _input_of(part.text)
        return {"type": "tool_use", "id": first.call_id, "name": first.name, "input": arguments}
    if isinstance(first, ReasoningPiece):
        return {"type": "thinking", "thinking": part.text, "signature": ""}
    return {"type": "text", "text": part.text}


def usage_json(usage: Usage, facts: MessageFacts) -> dict[str, Any]:
    """Return the usage in Anthropic's words.

    The prompt's tokens are those read from the cache, those up to the last breakpoint that were
    not, and the others; each is counted once.
    """
    read = usage.cached_tokens
    created = max(0, min(facts.marked_len, usage.prompt_tokens) - read)
    is_long = facts.mark is not None and facts.mark.ttl == "1h"
    return {
        "input_tokens": usage.prompt_tokens - read - created,
        "output_tokens": usage.completion_tokens,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": created,
        "cache_creation": {
            "ephemeral_5m_input_tokens": 0 if is_long else created,
            "ephemeral_1h_input_tokens": created if is_long else 0,
        },
    }


def _input_of(arguments: str) -> dict[str, Any]:
    """Return a call's arguments; of a call that was cut short, those that are complete.

    That is also what Anthropic's clients make of the deltas.
    """
    try:
        value = from_json(arguments or "{}", allow_partial=True)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
