"""When the requests of a trace arrive: as recorded, all at once, or after their predecessors."""

from __future__ import annotations

import enum
from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from radixserve.replay.trace import Trace


class ArrivalMode(enum.Enum):
    """How arrivals follow from a trace."""

    RECORDED = "recorded"
    """Open loop: at their times, however slow the server is."""
    BATCH = "batch"
    """All at the beginning."""
    SESSIONS = "sessions"
    """Closed loop: the first of a session at its time, each other one its `think_s` after the
    answer to the one before it. Requests without a session at their times."""


class Arrivals:
    """Requests, by number, that have not arrived yet.

    Args:
        speed: Recorded seconds that pass in one second.
    """

    def __init__(self, trace: Trace, mode: ArrivalMode, speed: float = 1.0) -> None:
        self._trace = trace
        self._speed = speed
        self._due: list[tuple[float, int]] = []
        self._successor: dict[int, int] = {}
        previous: dict[str, int] = {}
        for number, request in enumerate(trace.requests):
            session = request.session if mode is ArrivalMode.SESSIONS else ""
            if session in previous:
                self._successor[previous[session]] = number
            else:
                at_s = 0.0 if mode is ArrivalMode.BATCH else request.arrival_s / speed
                heappush(self._due, (at_s, number))
            if session:
                previous[session] = number

    @property
    def next_s(self) -> float | None:
        """When the next one arrives, None if nobody will before another one ends."""
        return self._due[0][0] if self._due else None

    def take(self, now_s: float) -> list[tuple[float, int]]:
        """Take out those that have arrived by now, as (arrival, number)."""
        taken = []
        while self._due and self._due[0][0] <= now_s:
            taken.append(heappop(self._due))
        return taken

    def answered(self, number: int, now_s: float) -> None:
        """Take note that a request has been answered: its successor can arrive."""
        successor = self._successor.pop(number, None)
        if successor is not None:
            think_s = self._trace.requests[successor].think_s / self._speed
            heappush(self._due, (now_s + think_s, successor))
