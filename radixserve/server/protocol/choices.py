"""What one choice of an answer is written by, in one piece or as a stream.

    writer.push(delta) -> the choices of the chunks that tell it       (stream)
    writer.whole()     -> the complete choice, from all that was pushed (non-stream)

Both ways push the same deltas into the same writer, so they cannot say different things.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from radixserve.types import FinishReason

if TYPE_CHECKING:
    from radixserve.engine.request import TextDelta

FINISH_REASONS = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.TIMEOUT: "length",
    FinishReason.ABORT: "error",
    FinishReason.ERROR: "error",
}


class ChoiceWriter(Protocol):
    """Writes one choice of one answer."""

    def push(self, delta: TextDelta) -> list[dict[str, Any]]:
        """Take in what the engine produced; return it as the choices of stream chunks, in order.

        The finish reason goes alone, after all text: clients drop the text beside it.

        Mutates: the writer.
        """
        ...

    def whole(self) -> dict[str, Any]:
        """Return the complete choice."""
        ...


class ChoiceShape(Protocol):
    """Makes the writers of one answer."""

    @property
    def whole_kind(self) -> str:
        """The `object` of an answer in one piece."""
        ...

    @property
    def chunk_kind(self) -> str:
        """The `object` of a stream's events."""
        ...

    def writer(self, index: int) -> ChoiceWriter:
        """Return the writer of the choice of that index."""
        ...
