"""How the two routes write a piece of text: as a completion's or as a chat's choice."""

from __future__ import annotations

from dataclasses import dataclass, field
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


@dataclass(slots=True)
class Choice:
    """The text of one choice while it is collected."""

    text: list[str] = field(default_factory=list)
    finish_reason: str | None = None

    def add(self, delta: TextDelta) -> None:
        """Append a piece of text. Mutates: the choice."""
        self.text.append(delta.text)
        if delta.finish_reason is not None:
            self.finish_reason = FINISH_REASONS[delta.finish_reason]


class ChoiceShape(Protocol):
    """Writes the choices of one route."""

    whole_kind: str
    chunk_kind: str

    def whole(self, index: int, choice: Choice) -> dict[str, Any]:
        """Return the complete choice."""
        ...

    def opening(self, index: int) -> dict[str, Any] | None:
        """Return the choice of the chunk before the first text, where the route has one."""
        ...

    def text(self, index: int, text: str) -> dict[str, Any]:
        """Return the choice of a chunk with text."""
        ...

    def ending(self, index: int, finish_reason: str) -> dict[str, Any]:
        """Return the choice of the chunk that ends a choice; it holds no text."""
        ...


class CompletionShape:
    """Choices of ``/v1/completions``."""

    whole_kind = "text_completion"
    chunk_kind = "text_completion"

    def whole(self, index: int, choice: Choice) -> dict[str, Any]:
        return _completion(index, "".join(choice.text), choice.finish_reason)

    def opening(self, index: int) -> None:
        return None

    def text(self, index: int, text: str) -> dict[str, Any]:
        return _completion(index, text, None)

    def ending(self, index: int, finish_reason: str) -> dict[str, Any]:
        return _completion(index, "", finish_reason)


class ChatShape:
    """Choices of ``/v1/chat/completions``."""

    whole_kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def whole(self, index: int, choice: Choice) -> dict[str, Any]:
        message = {"role": "assistant", "content": "".join(choice.text), "refusal": None}
        return {
            "index": index,
            "message": message,
            "logprobs": None,
            "finish_reason": choice.finish_reason,
        }

    def opening(self, index: int) -> dict[str, Any]:
        return _chat(index, {"role": "assistant", "content": ""}, None)

    def text(self, index: int, text: str) -> dict[str, Any]:
        return _chat(index, {"content": text}, None)

    def ending(self, index: int, finish_reason: str) -> dict[str, Any]:
        return _chat(index, {}, finish_reason)


def _completion(index: int, text: str, finish_reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}


def _chat(index: int, delta: dict[str, str], finish_reason: str | None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
