"""What is to be sent: sessions of turns, each turn a few pieces, known by name and length only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Drawn:
    """A random piece: equal names and seeds give equal pieces, in every process.

    Attributes:
        name: What is shared under it is shared in the prompts.
        length: Tokens, or about as many where it is sent as words.
    """

    name: str
    length: int


Piece: TypeAlias = "Drawn | str | tuple[int, ...]"
"""Drawn at random, or given: text, or token ids."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What a user says, and how long the answer may be."""

    pieces: tuple[Piece, ...]
    output_len: int
    """Most tokens of the answer; exactly as many where its end is ignored."""


@dataclass(frozen=True, slots=True)
class Session:
    """Turns sent one after the other, each with all that was said before; most have one turn."""

    name: str
    turns: tuple[Turn, ...]
    system: tuple[Piece, ...] = ()
    """What comes before the first turn."""

    @property
    def is_given(self) -> bool:
        """Whether its prompt is the caller's own, to be sent as it is."""
        return any(not isinstance(piece, Drawn) for turn in self.turns for piece in turn.pieces)


def num_requests(sessions: Sequence[Session]) -> int:
    """Return how many requests they make if none fails."""
    return sum(len(session.turns) for session in sessions)


def single(name: str, pieces: Sequence[Piece], output_len: int) -> Session:
    """Return a session of one turn."""
    return Session(name, (Turn(tuple(pieces), output_len),))
