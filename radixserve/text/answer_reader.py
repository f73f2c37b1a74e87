"""One answer's text, read as thoughts, text and calls: the way of every chat-like endpoint.

format = AnswerFormat(style=..., names=...)       one for a request
reader = format.reader()                          one for each of its answers
reader.push(delta.text) ... reader.flush()        events
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixserve.text.reasoning import ReasoningSplitter
from radixserve.text.tool_calls.call_parser import PassThrough
from radixserve.text.tool_calls.events import CallStart, TextPiece

if TYPE_CHECKING:
    from radixserve.text.tool_calls.call_parser import ToolCallParser
    from radixserve.text.tool_calls.events import AnswerEvent, CallEvent
    from radixserve.text.tool_calls.styles import ToolCallStyle


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFormat:
    """What may be in the answers of one request.

    Attributes:
        style: How calls are written; None: no tool may be called, and all is text.
        names: The functions that may be called.
        max_calls: Calls after so many are left out; None: no limit.
        has_reasoning: The model thinks in tags.
        is_inside_reasoning: The prompt has opened the thoughts.
    """

    style: ToolCallStyle | None = None
    names: tuple[str, ...] = ()
    max_calls: int | None = None
    has_reasoning: bool = False
    is_inside_reasoning: bool = False

    @property
    def needs_special_tokens(self) -> bool:
        """Whether the text must be made with special tokens, for calls to be found in it."""
        return self.style is not None and self.style.needs_special_tokens

    def reader(self) -> AnswerReader:
        """Return the reader of one answer."""
        calls: ToolCallParser = PassThrough()
        if self.style is not None:
            calls = self.style.parser(self.names)
        thoughts = None
        if self.has_reasoning:
            thoughts = ReasoningSplitter(is_inside=self.is_inside_reasoning)
        return AnswerReader(calls, thoughts=thoughts, max_calls=self.max_calls)


PLAIN_TEXT = AnswerFormat()
"""No calls, no thoughts."""


class AnswerReader:
    """Reads one answer; what it tells does not depend on how the text is cut into pieces.

    Args:
        calls: Finds the calls in what is not thought.
        thoughts: Splits off the thoughts; None: there are none.
        max_calls: Calls after so many are left out; None: no limit.
    """

    def __init__(
        self,
        calls: ToolCallParser,
        *,
        thoughts: ReasoningSplitter | None = None,
        max_calls: int | None = None,
    ) -> None:
        self._calls = calls
        self._thoughts = thoughts
        self._max_calls = max_calls
        self.num_calls = 0
        """Calls told so far."""

    def push(self, text: str) -> list[AnswerEvent]:
        """Take in more text and return what is certain by now. Mutates: the reader."""
        if not text:
            return []
        if self._thoughts is None:
            return [*self._checked(self._calls.push(text))]
        return self._read(self._thoughts, text)

    def flush(self) -> list[AnswerEvent]:
        """Return what is left now that no more text follows. Mutates: the reader."""
        events: list[AnswerEvent] = []
        if self._thoughts is not None:
            events = self._read(self._thoughts, None)
        return [*events, *self._checked(self._calls.flush())]

    def _read(self, thoughts: ReasoningSplitter, text: str | None) -> list[AnswerEvent]:
        events: list[AnswerEvent] = []
        for piece in thoughts.flush() if text is None else thoughts.push(text):
            if isinstance(piece, TextPiece):
                events += self._checked(self._calls.push(piece.text))
            else:
                events.append(piece)
        return events

    def _checked(self, events: list[CallEvent]) -> list[CallEvent]:
        limit = self._max_calls
        kept = [
            event
            for event in events
            if limit is None or isinstance(event, TextPiece) or event.index < limit
        ]
        self.num_calls += sum(isinstance(event, CallStart) for event in kept)
        return kept
