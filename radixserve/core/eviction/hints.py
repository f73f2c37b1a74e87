"""What the owner of a path says about its future when it lets go, and what a use leaves behind.

A hint orders the eviction; it never decides whether a block can be evicted. A wrong one costs
speed.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace


class Ending(enum.Enum):
    """Why the Req that used a path ended, as far as it tells whether somebody will come back."""

    UNKNOWN = "unknown"
    TURN = "turn"
    """The model ended its turn: a person has to answer first."""
    TOOL = "tool"
    """The model called a tool: its result will come back by itself."""


class Keep(enum.Enum):
    """How much of a path is worth keeping."""

    ALL = "all"
    PREFIX = "prefix"
    """Only what others share or what the caller marked as prefix; the rest goes first."""
    NONE = "none"
    """Nothing that is this path's alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseHint:
    """What is known about a path when its user lets go of it. Times in seconds."""

    ending: Ending = Ending.UNKNOWN
    keep: Keep = Keep.ALL
    prefix_len: int = 0
    """Leading tokens that `Keep.PREFIX` keeps even if nobody else shares them."""
    hold_s: float = 0.0
    """Do not evict for so long (a pin with a time to live, or an expected tool wait), as far as
    the budget for holds goes."""
    is_session_end: bool = False
    """Nobody will extend this path: what is its alone goes first."""
    priority: int = 0
    """Among held paths the lower goes first."""

    @property
    def cold_from(self) -> int | None:
        """Tokens from the root after which the path goes first; None if it does not."""
        if self.keep is Keep.PREFIX:
            return self.prefix_len
        if self.keep is Keep.NONE or self.is_session_end:
            return 0
        return None

    def when_ended(self, shared_len: int) -> ReleaseHint:
        """Return the hint once nobody goes on from this path: no tool is waited for, and what is
        its alone goes first, unless a time to live was asked for.

        Args:
            shared_len: Leading tokens that others are likely to need, as they had them before.
        """
        if self.hold_s > 0 and self.ending is not Ending.TOOL:
            return self
        ended = replace(self, ending=Ending.UNKNOWN, hold_s=0.0)
        if self.keep is not Keep.ALL:
            return ended
        return replace(ended, keep=Keep.PREFIX, prefix_len=max(self.prefix_len, shared_len))


NO_HINT = ReleaseHint()


@dataclass(frozen=True, slots=True)
class Hold:
    """A node's mark: it goes before the others, or after them until a time."""

    until_s: float
    """On the clock of `tick`; `COLD_S` if it goes first."""
    priority: int = 0
    is_pinned: bool = False
    """Whether `pins` has counted it already, so that it stays held whatever else is."""

    @property
    def is_cold(self) -> bool:
        """Whether the node goes first."""
        return self.until_s == COLD_S


COLD_S = float("-inf")
COLD = Hold(COLD_S)


class Use:
    """One use of a path; all the nodes on it share the object until their next use."""

    __slots__ = ("came_back", "ending", "level", "turn")

    def __init__(self, ending: Ending) -> None:
        self.ending = ending
        self.turn = 0
        """About how often the path was extended: its nodes, and the earlier uses of the last."""
        self.level = 0.0
        """How far an ageing policy had aged by then. Written by the eviction order."""
        self.came_back = False
        """Whether what it published had been evicted before. Written by the eviction order."""

    def __repr__(self) -> str:
        return f"<Use turn={self.turn} {self.ending.value}>"


NEVER = Use(Ending.UNKNOWN)
