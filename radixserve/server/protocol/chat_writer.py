"""Choices of ``/v1/chat/completions``.

{"role": "assistant", "content": ""}                      first, always
{"reasoning_content": "..."}                              thoughts
{"content": "..."}                                        text
{"tool_calls": [{index, id, type, function: {name}}]}     a call begins
{"tool_calls": [{index, function: {arguments: "..."}}]}   and goes on
{}  with the finish reason                                last, always
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from radixserve.server.protocol.choices import FINISH_REASONS
from radixserve.server.protocol.logprobs import chat_logprobs
from radixserve.server.protocol.tools import NO_TOOLS
from radixserve.text.answer_reader import PLAIN_TEXT
from radixserve.text.tool_calls import ArgumentsPiece, CallStart, TextPiece

if TYPE_CHECKING:
    from radixserve.engine.request import TextDelta
    from radixserve.server.protocol.logprobs import TokenNames
    from radixserve.server.protocol.tools import ToolUse
    from radixserve.text.answer_reader import AnswerFormat
    from radixserve.text.tool_calls import AnswerEvent
    from radixserve.types import TokenLogprob


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatShape:
    """Makes the writers of one answer.

    Attributes:
        names: How tokens are written.
        format: What may be in the text.
        tool_use: What the request says of tools.
        num_logprobs: Likeliest tokens told beside each token; None tells no log-probabilities.
    """

    names: TokenNames
    format: AnswerFormat = PLAIN_TEXT
    tool_use: ToolUse = NO_TOOLS
    num_logprobs: int | None = None

    whole_kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def writer(self, index: int) -> ChatWriter:
        """Return the writer of the choice of that index."""
        return ChatWriter(index, self)


class ChatWriter:
    """Writes one message: role, thoughts, text, calls, then the finish reason.

    Log-probabilities are those of all tokens, thoughts, calls and their markup included; in a
    stream they go with the next chunk.

    Args:
        index: Of the choice.
        shape: Of the answer.
    """

    def __init__(self, index: int, shape: ChatShape) -> None:
        self._index = index
        self._shape = shape
        self._reader = shape.format.reader()
        self._message = MessageSoFar()
        self._is_open = False
        self._untold: list[TokenLogprob] = []
        self._logprobs: list[dict[str, Any]] = []
        self._finish_reason: str | None = None

    def push(self, delta: TextDelta) -> list[dict[str, Any]]:
        """Return the chunks of a delta; the first of all names the role."""
        self._untold.extend(delta.logprobs)
        events = self._reader.push(delta.text)
        if delta.finish_reason is not None:
            events += self._reader.flush()
        chunks = [] if self._is_open else self._opening(events, delta)
        chunks += [self._chunk(self._message.add(event)) for event in events]
        if delta.finish_reason is not None:
            if self._has_untold:
                chunks.append(self._chunk({}))
            self._finish_reason = self._shape.tool_use.finish_reason(
                FINISH_REASONS[delta.finish_reason], self._reader.num_calls
            )
            chunks.append(self._choice({"delta": {}}, None))
        return chunks

    def whole(self) -> dict[str, Any]:
        """Return the complete choice."""
        logprobs = None
        if self._shape.num_logprobs is not None:
            logprobs = {"content": self._logprobs, "refusal": None}
        return self._choice({"message": self._message.whole()}, logprobs)

    def _opening(self, events: list[AnswerEvent], delta: TextDelta) -> list[dict[str, Any]]:
        """A message that begins with thoughts or a call has no content yet, which is null."""
        if not events and delta.finish_reason is None:
            return []
        self._is_open = True
        begins_with_text = not events or isinstance(events[0], TextPiece)
        content = self._message.open("" if begins_with_text else None)
        return [self._choice({"delta": {"role": "assistant", "content": content}}, None)]

    @property
    def _has_untold(self) -> bool:
        return self._shape.num_logprobs is not None and bool(self._untold)

    def _chunk(self, delta: dict[str, Any]) -> dict[str, Any]:
        return self._choice({"delta": delta}, self._told() if self._has_untold else None)

    def _told(self) -> dict[str, Any]:
        told = chat_logprobs(self._untold, self._shape.num_logprobs or 0, self._shape.names)
        self._untold.clear()
        self._logprobs += told["content"]
        return told

    def _choice(self, said: dict[str, Any], logprobs: dict[str, Any] | None) -> dict[str, Any]:
        return {
            "index": self._index,
            **said,
            "logprobs": logprobs,
            "finish_reason": self._finish_reason,
        }


class MessageSoFar:
    """One assistant message, event by event."""

    def __init__(self) -> None:
        self._content: str | None = None
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[tuple[CallStart, list[str]]] = []

    def open(self, content: str | None) -> str | None:
        """Begin with that content and return it. Mutates: the message."""
        self._content = content
        return content

    def add(self, event: AnswerEvent) -> dict[str, Any]:
        """Take in one event; return the delta that tells it. Mutates: the message."""
        if isinstance(event, TextPiece):
            self._texts.append(event.text)
            return {"content": event.text}
        if isinstance(event, CallStart):
            self._calls.append((event, []))
            return {"tool_calls": [{"index": event.index, **_call_json(event, "")}]}
        if isinstance(event, ArgumentsPiece):
            self._calls[event.index][1].append(event.text)
            return {"tool_calls": [{"index": event.index, "function": {"arguments": event.text}}]}
        self._thoughts.append(event.text)
        return {"reasoning_content": event.text}

    def whole(self) -> dict[str, Any]:
        """Return the message; its content is null where it has none but thoughts or calls."""
        content = "".join(self._texts) if self._texts else self._content
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if self._thoughts:
            message["reasoning_content"] = "".join(self._thoughts)
        if self._calls:
            message["tool_calls"] = [
                _call_json(start, "".join(pieces)) for start, pieces in self._calls
            ]
        return message


def _call_json(start: CallStart, arguments: str) -> dict[str, Any]:
    return {
        "id": start.call_id,
        "type": "function",
        "function": {"name": start.name, "arguments": arguments},
    }
