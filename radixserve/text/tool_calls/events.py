"""What an answer is made of, as it comes: text, thoughts, and calls of tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Text that is meant for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningPiece:
    """What the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call has begun: its name is known and its arguments follow.

    Attributes:
        index: Counts the calls of one answer from 0.
        call_id: Unique; an answer from the tool names it.
    """

    index: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsPiece:
    """More of a call's arguments, as the model wrote them; the pieces of a call join to JSON."""

    index: int
    text: str


CallEvent: TypeAlias = TextPiece | CallStart | ArgumentsPiece
AnswerEvent: TypeAlias = CallEvent | ReasoningPiece


def add_text(events: list[CallEvent], text: str) -> None:
    """Append text to a list of events, to its last one if that is text. Mutates: `events`."""
    if not text:
        return
    if events and isinstance(events[-1], TextPiece):
        text = events.pop().text + text  # type: ignore[union-attr]
    events.append(TextPiece(text))
