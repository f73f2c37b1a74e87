"""Choices of ``/v1/completions``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixserve.server.protocol.choices import FINISH_REASONS

if TYPE_CHECKING:
    from radixserve.engine.request import TextDelta


class CompletionShape:
    """Makes the writers of one answer."""

    whole_kind = "text_completion"
    chunk_kind = "text_completion"

    def writer(self, index: int) -> CompletionWriter:
        """Return the writer of the choice of that index."""
        return CompletionWriter(index)


class CompletionWriter:
    """Writes one choice: text, then the finish reason."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._texts: list[str] = []
        self._finish_reason: str | None = None

    def push(self, delta: TextDelta) -> list[dict[str, Any]]:
        """Return the chunks of a delta."""
        chunks = []
        if delta.text:
            self._texts.append(delta.text)
            chunks.append(self._choice(delta.text, None))
        if delta.finish_reason is not None:
            self._finish_reason = FINISH_REASONS[delta.finish_reason]
            chunks.append(self._choice("", self._finish_reason))
        return chunks

    def whole(self) -> dict[str, Any]:
        """Return the complete choice."""
        return self._choice("".join(self._texts), self._finish_reason)

    def _choice(self, text: str, finish_reason: str | None) -> dict[str, Any]:
        return {
            "index": self._index,
            "text": text,
            "logprobs": None,
            "finish_reason": finish_reason,
        }
