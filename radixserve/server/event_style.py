"""How a family of APIs writes the events of a stream.

OpenAI       data: {...}                                          ends with data: [DONE]
Responses    event: response.created     data: {"type": ...}      ends with its own last event
Anthropic    event: message_start        data: {"type": ...}      ends with its own last event
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from radixserve.server.envelopes import anthropic_error, openai_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve.server.errors import ErrorReply


@dataclass(frozen=True, slots=True, kw_only=True)
class EventStyle:
    """The shape of one stream."""

    error_event: Callable[[ErrorReply, int], dict[str, Any]]
    """What tells of a failure after so many events."""
    end: bytes = b""
    """Written after the last event."""
    is_named: bool = False
    """Whether the `type` of each event is also the name of the server-sent event."""

    def frame(self, event: dict[str, Any]) -> bytes:
        """Return one event as it is sent."""
        data = b"data: " + orjson.dumps(event) + b"\n\n"
        return b"event: " + event["type"].encode() + b"\n" + data if self.is_named else data


def _openai_event(reply: ErrorReply, num_sent: int) -> dict[str, Any]:
    return openai_error(reply)


def _anthropic_event(reply: ErrorReply, num_sent: int) -> dict[str, Any]:
    return anthropic_error(reply)


def _responses_event(reply: ErrorReply, num_sent: int) -> dict[str, Any]:
    details = reply.details()
    kept = {name: details[name] for name in ("code", "message", "param")}
    return {"type": "error", "sequence_number": num_sent, **kept}


OPENAI_EVENTS = EventStyle(error_event=_openai_event, end=b"data: [DONE]\n\n")
RESPONSES_EVENTS = EventStyle(error_event=_responses_event, is_named=True)
ANTHROPIC_EVENTS = EventStyle(error_event=_anthropic_event, is_named=True)
