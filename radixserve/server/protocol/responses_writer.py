"""The answer of ``POST /v1/responses``: output items, as events or as one response.

response.created  response.in_progress
response.output_item.added  ...added  ...delta ...  ...done  response.output_item.done
response.completed, or response.incomplete where the output was cut
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any

from radixserve.server.protocol.answer_parts import AnswerPart
from radixserve.text.tool_calls.events import CallStart, ReasoningPiece
from radixserve.types import FinishReason

if TYPE_CHECKING:
    from radixserve.engine.request import TextDelta, Usage
    from radixserve.server.protocol.responses import ResponsesRequest
    from radixserve.text.answer_reader import AnswerReader
    from radixserve.text.tool_calls.events import AnswerEvent


class ResponseWriter:
    """Writes one response.

    Args:
        head: What of the response is known from the start; see `response_head`.
        reader: Tells text, thoughts and calls apart.
    """

    def __init__(self, head: dict[str, Any], reader: AnswerReader) -> None:
        self._response = head
        self._reader = reader
        self._items: list[_Item] = []
        self._num_events = 0

    def push(self, delta: TextDelta) -> list[dict[str, Any]]:
        """Return the events that a delta makes. Mutates: the writer."""
        events = [] if self._num_events else self._opening()
        for piece in self._reader.push(delta.text):
            events += self._add(piece)
        if delta.finish_reason is not None:
            events += self._ending(delta.finish_reason, delta.usage)
        return events

    def whole(self) -> dict[str, Any]:
        """Return the complete response."""
        return self._response

    def _opening(self) -> list[dict[str, Any]]:
        started = {"response": self._response}
        return [
            self._event("response.created", **started),
            self._event("response.in_progress", **started),
        ]

    def _event(self, kind: str, **content: Any) -> dict[str, Any]:
        event = {"type": kind, "sequence_number": self._num_events, **content}
        self._num_events += 1
        return event

    def _item_event(self, kind: str, **content: Any) -> dict[str, Any]:
        return self._event(f"response.{kind}", output_index=len(self._items) - 1, **content)

    def _add(self, piece: AnswerEvent) -> list[dict[str, Any]]:
        events = []
        if not self._items or not self._items[-1].part.takes(piece):
            events += self._close("completed")
            self._items.append(_Item(piece))
            events += self._open()
        item = self._items[-1]
        text = item.part.add(piece)
        if text:
            told = item.told(delta=text)
            events.append(self._item_event(f"{item.noun}.delta", **item.place, **told))
        return events

    def _open(self) -> list[dict[str, Any]]:
        item = self._items[-1]
        events = [self._item_event("output_item.added", item=item.opening())]
        if item.has_content:
            events.append(self._item_event("content_part.added", **item.place, part=item.content()))
        return events

    def _close(self, status: str) -> list[dict[str, Any]]:
        if not self._items:
            return []
        item = self._items[-1]
        item.status = status
        events = [self._item_event(f"{item.noun}.done", **item.place, **item.total())]
        if item.has_content:
            events.append(self._item_event("content_part.done", **item.place, part=item.content()))
        return [*events, self._item_event("output_item.done", item=item.json())]

    def _ending(self, reason: FinishReason, usage: Usage) -> list[dict[str, Any]]:
        events = [event for piece in self._reader.flush() for event in self._add(piece)]
        status = "completed" if reason is FinishReason.STOP else "incomplete"
        events += self._close(status)
        cut = None if status == "completed" else {"reason": "max_output_tokens"}
        self._response = {
            **self._response,
            "status": status,
            "incomplete_details": cut,
            "completed_at": int(time.time()) if status == "completed" else None,
            "output": [item.json() for item in self._items],
            "usage": usage_json(usage),
        }
        return [*events, self._event(f"response.{status}", response=self._response)]


class _Item:
    """One output item.

    Args:
        first: The piece that opens it.
    """

    def __init__(self, first: AnswerEvent) -> None:
        self.part = AnswerPart(first)
        self.status = "in_progress"
        self.has_content = not isinstance(first, CallStart)
        """Whether its text is in a content part of its own."""
        if isinstance(first, CallStart):
            self.noun, prefix = "function_call_arguments", "fc"
        elif isinstance(first, ReasoningPiece):
            self.noun, prefix = "reasoning_text", "rs"
        else:
            self.noun, prefix = "output_text", "msg"
        self._id = f"{prefix}_{secrets.token_hex(16)}"

    @property
    def place(self) -> dict[str, Any]:
        """Where in the output its text goes."""
        content = {"content_index": 0} if self.has_content else {}
        return {"item_id": self._id, **content}

    def told(self, **text: str) -> dict[str, Any]:
        """Return what an event says of its text."""
        return {**text, "logprobs": []} if self.noun == "output_text" else text

    def total(self) -> dict[str, Any]:
        """Return all of its text, as the event that ends it tells it."""
        first = self.part.first
        if isinstance(first, CallStart):
            return {"name": first.name, "arguments": self.part.text}
        return self.told(text=self.part.text)

    def content(self) -> dict[str, Any]:
        """Return its content part."""
        if self.noun == "reasoning_text":
            return {"type": self.noun, "text": self.part.text}
        return {"type": self.noun, "text": self.part.text, "annotations": [], "logprobs": []}

    def opening(self) -> dict[str, Any]:
        """Return the item before anything is in it."""
        return self.json() if not self.has_content else {**self.json(), "content": []}

    def json(self) -> dict[str, Any]:
        """Return the item with all that is in it."""
        first = self.part.first
        head = {"id": self._id, "status": self.status}
        if isinstance(first, CallStart):
            call = {"call_id": first.call_id, "name": first.name, "arguments": self.part.text}
            return {**head, "type": "function_call", **call}
        content = [self.content()]
        if isinstance(first, ReasoningPiece):
            return {**head, "type": "reasoning", "summary": [], "content": content}
        return {**head, "type": "message", "role": "assistant", "content": content}


def response_head(
    fields: ResponsesRequest, *, response_id: str, created: int, model: str
) -> dict[str, Any]:
    """Return a response of which nothing has been generated yet.

    Args:
        created: Seconds since 1970.
    """
    asked = fields.model_dump(by_alias=True, exclude_none=True)
    return {
        "id": response_id,
        "object": "response",
        "created_at": created,
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens,
        "max_tool_calls": None,
        "metadata": fields.metadata,
        "model": model,
        "output": [],
        "parallel_tool_calls": fields.parallel_tool_calls,
        "previous_response_id": None,
        "reasoning": fields.reasoning,
        "service_tier": "default",
        "store": False,
        "temperature": fields.temperature,
        "text": {"format": {"type": "text"}, **asked["text"]},
        "tool_choice": asked["tool_choice"],
        "tools": asked["tools"],
        "top_logprobs": 0,
        "top_p": fields.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": fields.user,
    }


def usage_json(usage: Usage) -> dict[str, Any]:
    """Return the usage in the Responses API's words."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.prompt_tokens - usage.cached_tokens,
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
