"""Stop strings in a stream of text.

            sent                 held              still to come
    ...................... | candidate...... | ......
                            ^ the first place where a stop string may have begun

Text goes out as soon as no stop string can begin in it any more. Which stop string ends the text
does not depend on how the text was cut into chunks: the one that begins first, and of several
that begin there the longest. So a complete match waits while an earlier or a longer one may still
become complete.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixserve.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class StopResult:
    """The text that may be sent now, and the stop string that ended it, if one did."""

    text: str
    matched: str | None


class StopStrings:
    """Cuts one stream of text at its first stop string.

    Args:
        stops: The stop strings; none of them empty. With none at all, all text passes.
        include: Send the stop string itself before ending.

    Raises:
        InvalidRequestError: A stop string is empty.
    Source: vllm-project/vllm#3574.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        if not all(stops):
            raise InvalidRequestError("A stop string must not be empty.", param="stop")
        self._stops = tuple(sorted(set(stops), key=len, reverse=True))
        self._first_letters = frozenset(stop[0] for stop in self._stops)
        self._longest = max(map(len, self._stops), default=1)
        self._include = include
        self._held = ""
        self.matched: str | None = None
        """The stop string that ended the text, found by `push` or at last by `flush`."""

    def push(self, text: str) -> StopResult:
        """Return the text that no stop string can begin in, or the end if one is complete.

        After a match nothing more comes out.

        Mutates: Holds at most the length of the longest stop string less one.
        Complexity: O((held + len(text)) * stops).
        """
        if self.matched is not None:
            return StopResult("", self.matched)
        buffer = self._held + text
        candidate = self._first_candidate(buffer)
        start, stop = self._first_match(buffer)
        if stop is not None and start < candidate:  # else an earlier or a longer one may win
            return StopResult(self._end(buffer, start, stop), stop)
        return StopResult(self._hold_from(buffer, min(candidate, start)), None)

    def flush(self) -> str:
        """Return the text still held, now that no more will follow.

        A complete match that was waiting for a longer one takes effect here: the text is cut and
        `matched` is set.

        Mutates: Holds nothing afterwards.
        """
        start, stop = self._first_match(self._held)
        if stop is not None:
            return self._end(self._held, start, stop)
        held, self._held = self._held, ""
        return held

    def _first_match(self, buffer: str) -> tuple[int, str | None]:
        """The longest of the stop strings that begin first; their start is `len(buffer)` if none.

        `_stops` is sorted longest first, and `min` keeps the first of equals.
        """
        found = [(buffer.find(stop), stop) for stop in self._stops]
        matches = [(start, stop) for start, stop in found if start >= 0]
        return min(matches, key=lambda match: match[0], default=(len(buffer), None))

    def _first_candidate(self, buffer: str) -> int:
        """The first place from which the rest of the buffer is a beginning of a stop string."""
        for start in range(max(0, len(buffer) - self._longest + 1), len(buffer)):
            if buffer[start] in self._first_letters and self._is_beginning(buffer[start:]):
                return start
        return len(buffer)

    def _is_beginning(self, tail: str) -> bool:
        return any(len(stop) > len(tail) and stop.startswith(tail) for stop in self._stops)

    def _hold_from(self, buffer: str, position: int) -> str:
        self._held = buffer[position:]
        return buffer[:position]

    def _end(self, buffer: str, start: int, stop: str) -> str:
        self.matched = stop
        self._held = ""
        return buffer[: start + len(stop)] if self._include else buffer[:start]
