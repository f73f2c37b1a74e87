"""Choices of ``/v1/chat/completions``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixserve.server.protocol.choices import FINISH_REASONS

if TYPE_CHECKING:
    from radixserve.engine.request import TextDelta


class ChatShape:
    """Makes the writers of one answer."""

    whole_kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def writer(self, index: int) -> ChatWriter:
        """Return the writer of the choice of that index."""
        return ChatWriter(index)


class ChatWriter:
    """Writes one message: role, content, then the finish reason."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._is_open = False
        self._texts: list[str] = []
        self._finish_reason: str | None = None

    def push(self, delta: TextDelta) -> list[dict[str, Any]]:
        """Return the chunks of a delta; the first of all names the role."""
        chunks = []
        if not self._is_open:
            self._is_open = True
            chunks.append(self._chunk({"role": "assistant", "content": ""}))
        if delta.text:
            self._texts.append(delta.text)
            chunks.append(self._chunk({"content": delta.text}))
        if delta.finish_reason is not None:
            self._finish_reason = FINISH_REASONS[delta.finish_reason]
            chunks.append(self._chunk({}, self._finish_reason))
        return chunks

    def whole(self) -> dict[str, Any]:
        """Return the complete choice."""
        message = {"role": "assistant", "content": "".join(self._texts), "refusal": None}
        return {
            "index": self._index,
            "message": message,
            "logprobs": None,
            "finish_reason": self._finish_reason,
        }

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        return {
            "index": self._index,
            "delta": delta,
            "logprobs": None,
            "finish_reason": finish_reason,
        }
