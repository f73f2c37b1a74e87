"""What a prompt consists of: frozen pieces, cheap to share between forks.

    Text("Review: great\\nLabel: ")        written by the program
    Generated("pos", (1234,))              written by the model, with the ids that it chose
    Turn("user", (Text("hi"),))            a message of a chat; its parts are the two above

A prompt is either plain (texts and outputs) or a chat (turns): see `Transcript`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from radixserve.errors import RoleError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from radixserve.types import TokenId


@dataclass(frozen=True, slots=True)
class Text:
    """A text that the program wrote. Control tokens in it are plain text."""

    text: str


@dataclass(frozen=True, slots=True)
class Generated:
    """A text that the model wrote."""

    text: str
    token_ids: tuple[TokenId, ...] = ()
    """Its tokens as they were sampled; empty if the backend does not tell, or if the text was cut
    within a token: it is tokenized anew then."""


Part: TypeAlias = Text | Generated


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a chat."""

    role: str
    parts: tuple[Part, ...] = ()
    is_open: bool = False
    """Whether more may be added: the assistant's turn while it is being written."""
    tool_call_id: str = ""
    """Of the call that a tool's message answers."""

    @property
    def text(self) -> str:
        """All its parts as one string."""
        return "".join(part.text for part in self.parts)


@dataclass(frozen=True, slots=True)
class Transcript:
    """All of a prompt so far. Appending returns a new one; what was there is shared."""

    parts: tuple[Part, ...] = ()
    """Of a plain prompt."""
    turns: tuple[Turn, ...] = ()
    """Of a chat."""

    @property
    def is_chat(self) -> bool:
        """Whether the model's chat template lays it out."""
        return bool(self.turns)

    @property
    def open_turn(self) -> Turn | None:
        """The turn that is being written."""
        return self.turns[-1] if self.turns and self.turns[-1].is_open else None

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been written."""
        return not self.parts and not self.turns

    def __str__(self) -> str:
        if not self.is_chat:
            return "".join(part.text for part in self.parts)
        return "\n".join(f"{turn.role}: {turn.text}" for turn in self.turns)

    def plus(self, part: Part) -> Transcript:
        """Return this with one more part, in the open turn or at the end of a plain prompt.

        Raises:
            RoleError: it is a chat, and no turn is open.
        """
        if not part.text and not isinstance(part, Generated):
            return self
        if not self.is_chat:
            return replace(self, parts=_joined(self.parts, part))
        turn = self.open_turn
        if turn is None:
            raise RoleError(
                "this prompt is a chat: text goes into a turn, such as p.user(text), or into "
                "'with p.assistant():'"
            )
        return self._with_last(replace(turn, parts=_joined(turn.parts, part)))

    def with_turn(self, turn: Turn) -> Transcript:
        """Return this with one more turn.

        Raises:
            RoleError: the prompt is plain, or a turn is open.
        """
        if self.parts:
            raise RoleError(
                f"this prompt has plain text before its first turn, so p.{turn.role}() cannot "
                "follow; begin with a turn"
            )
        if self.open_turn is not None:
            raise RoleError(
                f"the turn of the {self.open_turn.role} is open: turns cannot be nested"
            )
        return replace(self, turns=(*self.turns, turn))

    def with_piece(self, piece: Part | Turn) -> Transcript:
        """Return this with one more turn or part."""
        return self.with_turn(piece) if isinstance(piece, Turn) else self.plus(piece)

    def closed(self) -> Transcript:
        """Return this with its open turn closed, if one is open."""
        turn = self.open_turn
        return self if turn is None else self._with_last(replace(turn, is_open=False))

    def suffix_after(self, earlier: Transcript) -> tuple[Part | Turn, ...]:
        """Return what was added since `earlier`, which this must begin with.

        Raises:
            RoleError: it does not.
        """
        mine: tuple[Part | Turn, ...] = self.turns if self.is_chat else self.parts
        theirs: tuple[Part | Turn, ...] = earlier.turns if self.is_chat else earlier.parts
        count = len(theirs)
        if mine[:count] == theirs:
            return mine[count:]
        if not self.is_chat and theirs and mine[: count - 1] == theirs[:-1]:
            last, grown = theirs[-1], mine[count - 1]
            if isinstance(grown, Text) and grown.text.startswith(last.text):
                return (Text(grown.text[len(last.text) :]), *mine[count:])
        raise RoleError("the branch does not begin with what its parent had when it was forked")

    def texts(self) -> Iterator[Part]:
        """All parts, in order."""
        yield from self.parts
        for turn in self.turns:
            yield from turn.parts

    def _with_last(self, turn: Turn) -> Transcript:
        return replace(self, turns=(*self.turns[:-1], turn))


def _joined(parts: tuple[Part, ...], part: Part) -> tuple[Part, ...]:
    """Append; two texts in a row become one, so that it does not matter how text was cut."""
    if parts and isinstance(part, Text) and isinstance(parts[-1], Text):
        return (*parts[:-1], Text(parts[-1].text + part.text))
    return (*parts, part)
