"""A model's thoughts apart from its answer.

    <think>
    Paris, I believe.
    </think>

    Paris.

Thoughts are only looked for at the beginning. White space around them and before the answer goes
out with neither; the tag anywhere else is text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from radixserve.text.tool_calls.events import ReasoningPiece, TextPiece

if TYPE_CHECKING:
    from collections.abc import Callable

OPENING = "<think>"
CLOSING = "</think>"

Piece: TypeAlias = ReasoningPiece | TextPiece


def mentions_reasoning(template_source: str) -> bool:
    """Whether a chat template is of a model that thinks in tags."""
    return OPENING in template_source or CLOSING in template_source


def opens_reasoning(prompt: str) -> bool:
    """Whether a prompt ends with the opening tag, so that the answer begins inside the thoughts."""
    return prompt.rstrip().endswith(OPENING)


def is_unfinished_reasoning(text: str) -> bool:
    """Whether the beginning of an answer ends inside the thoughts."""
    return text.rfind(OPENING) > text.rfind(CLOSING)


class ReasoningSplitter:
    """Splits one answer; how it is cut into pieces does not matter.

    Args:
        is_inside: The prompt has opened the thoughts already.
    """

    def __init__(self, *, is_inside: bool = False) -> None:
        self._rest = ""
        self._is_inside = is_inside
        self._state: Callable[[], list[Piece]] = self._read_opening
        self._has_begun = False

    def push(self, text: str) -> list[Piece]:
        """Take in more text and return what is certain by now. Mutates: the splitter."""
        self._rest += text
        return self._state()

    def flush(self) -> list[Piece]:
        """Return what is left now that no more text follows. Mutates: the splitter."""
        rest, self._rest = self._rest, ""
        if self._state == self._read_opening:
            return _thought(rest.strip()) if self._is_inside else _text(rest)
        if self._state == self._read_thoughts:
            return _thought(rest.rstrip())
        return []

    def _read_opening(self) -> list[Piece]:
        body = self._rest.lstrip()
        if body.startswith(OPENING):
            self._rest = body.removeprefix(OPENING)
            return self._go_on(self._read_thoughts)
        if OPENING.startswith(body):
            return []
        return self._go_on(self._read_thoughts if self._is_inside else self._read_answer)

    def _read_thoughts(self) -> list[Piece]:
        if not self._has_begun:
            self._rest = self._rest.lstrip()
        end = self._rest.find(CLOSING)
        if end >= 0:
            thought = self._rest[:end].rstrip()
            self._rest = self._rest[end + len(CLOSING) :]
            return [*_thought(thought), *self._go_on(self._read_gap)]
        certain = self._rest[: _opening_at(self._rest)].rstrip()
        self._rest = self._rest[len(certain) :]
        self._has_begun = self._has_begun or bool(certain)
        return _thought(certain)

    def _read_gap(self) -> list[Piece]:
        self._rest = self._rest.lstrip()
        return self._go_on(self._read_answer) if self._rest else []

    def _read_answer(self) -> list[Piece]:
        rest, self._rest = self._rest, ""
        return _text(rest)

    def _go_on(self, state: Callable[[], list[Piece]]) -> list[Piece]:
        self._state = state
        return state()


def _thought(text: str) -> list[Piece]:
    return [ReasoningPiece(text)] if text else []


def _text(text: str) -> list[Piece]:
    return [TextPiece(text)] if text else []


def _opening_at(text: str) -> int:
    """The first place from which the rest of the text is a beginning of the closing tag."""
    for start in range(max(0, len(text) - len(CLOSING) + 1), len(text)):
        if CLOSING.startswith(text[start:]):
            return start
    return len(text)
