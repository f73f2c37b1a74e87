"""A session's prompts in the form that its server takes, with the real answers in them."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Protocol, TypeAlias

from radixserve.bench.wording import IdWording, TextWording
from radixserve.bench.workload import Drawn
from radixserve.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from radixserve.bench.workload import Piece, Session, Turn

Prompt: TypeAlias = "str | list[int] | list[Mapping[str, str]]"
"""A text, token ids, or the messages of a chat."""


class Form(enum.Enum):
    """How prompts are sent."""

    IDS = "ids"
    TEXT = "text"
    CHAT = "chat"


class Dialogue(Protocol):
    """The history of one session so far."""

    session: Session

    def ask(self, turn: Turn) -> Prompt:
        """Return the prompt of a turn: all that was said, and what the user says now."""
        ...

    def answered(self, text: str, token_ids: Sequence[int]) -> None:
        """Take in what the server answered to the turn that was asked last."""
        ...


class IdDialogue:
    """Token ids, one after the other. Implements `Dialogue`."""

    def __init__(self, session: Session, wording: IdWording) -> None:
        self.session = session
        self._wording = wording
        self._history = self._ids(session.system)

    def ask(self, turn: Turn) -> Prompt:
        """Return all ids up to the end of this turn."""
        self._history += self._ids(turn.pieces)
        return list(self._history)

    def answered(self, text: str, token_ids: Sequence[int]) -> None:
        """Go on after the ids of the answer."""
        del text
        self._history += token_ids

    def _ids(self, pieces: Iterable[Piece]) -> list[int]:
        ids: list[int] = []
        for piece in pieces:
            if isinstance(piece, str):
                raise ConfigError(f"{self.session.name} is a text and cannot be sent as token ids")
            ids += self._wording.of(piece) if isinstance(piece, Drawn) else piece
        return ids


class TextDialogue:
    """Plain text; several turns are told apart by who speaks. Implements `Dialogue`."""

    def __init__(self, session: Session, wording: TextWording) -> None:
        self.session = session
        self._wording = wording
        self._history = text_of(session.system, wording)

    def ask(self, turn: Turn) -> Prompt:
        """Return the text up to where the answer begins."""
        said = text_of(turn.pieces, self._wording)
        has_turns = len(self.session.turns) > 1
        self._history += f"\nUser:{said}\nAssistant:" if has_turns else said
        return self._history if self.session.is_given else self._history.lstrip(" ")

    def answered(self, text: str, token_ids: Sequence[int]) -> None:
        """Go on after the answer."""
        del token_ids
        self._history += text


class ChatDialogue:
    """Messages of a chat. Implements `Dialogue`."""

    def __init__(self, session: Session, wording: TextWording) -> None:
        self.session = session
        self._wording = wording
        self._messages: list[Mapping[str, str]] = []
        if session.system:
            self._say("system", text_of(session.system, wording))

    def ask(self, turn: Turn) -> Prompt:
        """Return the messages up to the user's of this turn."""
        self._say("user", text_of(turn.pieces, self._wording))
        return list(self._messages)

    def answered(self, text: str, token_ids: Sequence[int]) -> None:
        """Add the assistant's message."""
        del token_ids
        self._say("assistant", text)

    def _say(self, role: str, text: str) -> None:
        self._messages.append(
            {"role": role, "content": text if self.session.is_given else text.lstrip(" ")}
        )


def text_of(pieces: Iterable[Piece], wording: TextWording) -> str:
    """Return pieces as text.

    Raises:
        ConfigError: a piece was given as token ids.
    """
    texts = []
    for piece in pieces:
        if isinstance(piece, tuple):
            raise ConfigError("prompts of token ids need a server that takes them, and completions")
        texts.append(wording.of(piece) if isinstance(piece, Drawn) else piece)
    return "".join(texts)


def start_dialogues(
    sessions: Sequence[Session], form: Form, *, seed: int, id_range: tuple[int, int]
) -> list[Dialogue]:
    """Return the sessions' dialogues, nothing said yet.

    Prompts that were given are sent as they are wherever their server's form has room for them.
    """
    ids, words = IdWording(seed, id_range), TextWording(seed)

    def start(session: Session) -> Dialogue:
        if form is Form.CHAT:
            return ChatDialogue(session, words)
        as_ids = form is Form.IDS
        if session.is_given:
            as_ids = isinstance(session.turns[0].pieces[0], tuple)
        return IdDialogue(session, ids) if as_ids else TextDialogue(session, words)

    return [start(session) for session in sessions]
