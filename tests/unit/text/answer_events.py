"""Answers read piece by piece, and what they say when all is joined."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

from radixserve.text.tool_calls import ArgumentsPiece, CallStart, ReasoningPiece, TextPiece

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class Reader(Protocol):
    """A parser or a splitter."""

    def push(self, text: str) -> Sequence[Any]: ...

    def flush(self) -> Sequence[Any]: ...


def numbered_ids() -> Callable[[], str]:
    """Return a maker of ids that can be told in advance: id0, id1, ..."""
    made: list[str] = []

    def make() -> str:
        made.append(f"id{len(made)}")
        return made[-1]

    return make


def pieces_of(text: str, cuts: Iterable[int]) -> list[str]:
    """Return the text cut at some of its places."""
    borders = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in pairwise(borders)]


def read(reader: Reader, pieces: Iterable[str]) -> list[tuple[Any, ...]]:
    """Return all that a reader tells as tuples, with neighbours of a kind joined."""
    events = [event for piece in pieces for event in reader.push(piece)]
    return joined([*events, *reader.flush()])


def joined(events: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return events as ("text", t), ("think", t), ("call", index, id, name), ("args", index, t)."""
    told: list[tuple[Any, ...]] = []
    for event in events:
        one = _told(event)
        if told and one[0] != "call" and told[-1][:-1] == one[:-1]:
            one = (*one[:-1], told.pop()[-1] + one[-1])
        told.append(one)
    return told


def _told(event: Any) -> tuple[Any, ...]:
    if isinstance(event, CallStart):
        return ("call", event.index, event.call_id, event.name)
    if isinstance(event, ArgumentsPiece):
        return ("args", event.index, event.text)
    assert isinstance(event, TextPiece | ReasoningPiece)
    return ("text" if isinstance(event, TextPiece) else "think", event.text)
