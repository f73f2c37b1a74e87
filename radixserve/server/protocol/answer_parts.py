"""The parts that an answer consists of, one after the other: text, thoughts, calls.

Anthropic's messages call them content blocks, the Responses API output items.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve.text.tool_calls.events import ArgumentsPiece, CallStart

if TYPE_CHECKING:
    from radixserve.text.tool_calls.events import AnswerEvent


class AnswerPart:
    """One part, piece by piece.

    Args:
        first: The piece that opens it; it is not added by that.
    """

    def __init__(self, first: AnswerEvent) -> None:
        self.first = first
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        """All that has been added."""
        return "".join(self._texts)

    def takes(self, piece: AnswerEvent) -> bool:
        """Whether a piece goes on with this part; else it opens the next."""
        if isinstance(self.first, CallStart):
            return isinstance(piece, ArgumentsPiece) and piece.index == self.first.index
        return type(piece) is type(self.first)

    def add(self, piece: AnswerEvent) -> str:
        """Take in a piece; return its text, which a call's start has none of. Mutates: the part."""
        text = "" if isinstance(piece, CallStart) else piece.text
        self._texts.append(text)
        return text
