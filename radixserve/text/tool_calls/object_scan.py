"""A JSON object that is still being written: where its members are, and where it ends.

    {"name": "add", "arguments": {"a": 2}} ...
                                 ^ VALUE     pauses where each member's value begins
                                          ^ END

Both scans look at each character once, and where they pause depends on the characters alone, not
on how the text was cut into pieces.
"""

from __future__ import annotations

import enum
import re

SPACE = " \t\n\r"
_STRING_STOP = re.compile(r'["\\]')
_BRACKETS = {"{": 1, "[": 1, "}": -1, "]": -1}
_BARE = re.compile(r"[A-Za-z0-9+\-.,:]")
"""What may stand outside strings besides brackets: numbers, names of constants, separators."""


class Stop(enum.Enum):
    """Why a scan has paused."""

    MORE = "the text so far has been read"
    VALUE = "a member's value begins here"
    END = "the object is complete"
    FAULT = "this cannot be a JSON object"


class _Expect(enum.Enum):
    OBJECT = enum.auto()
    KEY = enum.auto()
    COLON = enum.auto()
    VALUE = enum.auto()
    REST = enum.auto()


class ObjectScan:
    """Reads one object out of a text that grows at its end.

    It is no validator: it refuses early what is plainly no object, and leaves the rest to a JSON
    parser.

    Args:
        start: Where the object begins, perhaps after white space.
        is_open: The scan begins inside the object, before a key.
    """

    def __init__(self, start: int, *, is_open: bool = False) -> None:
        self.position = start
        """The first character that has not been read."""
        self.members: dict[str, tuple[int, int]] = {}
        """Key, with its quotes, to the range of its value; only complete members."""
        self.key = ""
        """Key of the member being read, with its quotes."""
        self._depth = 1 if is_open else 0
        self._expect = _Expect.KEY if is_open else _Expect.OBJECT
        self._is_in_string = False
        self._string_start = 0
        self._value_start = 0

    def advance(self, text: str) -> Stop:
        """Go on until something is to be said.

        Args:
            text: All of the text; what was read of it may not have changed.

        Mutates: the scan. Complexity: O(new characters).
        """
        while self.position < len(text):
            if self._is_in_string:
                if not self._leave_string(text):
                    return Stop.MORE
                continue
            character = text[self.position]
            stop = None if character in SPACE else self._read(character)
            if stop is not None:
                return stop
            self.position += 1
        return Stop.MORE

    def _leave_string(self, text: str) -> bool:
        found = _STRING_STOP.search(text, self.position)
        if found is None:
            self.position = len(text)
            return False
        if found[0] == "\\":
            is_whole = found.end() < len(text)
            self.position = found.end() + 1 if is_whole else found.start()
            return is_whole
        self.position = found.end()
        self._is_in_string = False
        if self._expect is _Expect.KEY:
            self.key = text[self._string_start : self.position]
            self._expect = _Expect.COLON
        return True

    def _read(self, character: str) -> Stop | None:
        """Take in a character outside of strings; None lets the scan go on behind it."""
        if self._expect is _Expect.VALUE:
            self._value_start = self.position
            self._expect = _Expect.REST
            return Stop.VALUE
        if self._expect is _Expect.REST:
            return self._read_value(character)
        if self._expect is _Expect.KEY:
            return self._read_key(character)
        wanted = "{" if self._expect is _Expect.OBJECT else ":"
        if character != wanted:
            return Stop.FAULT
        self._depth = 1
        self._expect = _Expect.KEY if wanted == "{" else _Expect.VALUE
        return None

    def _read_key(self, character: str) -> Stop | None:
        if character == '"':
            self._open_string()
            return None
        return self._end() if character == "}" else Stop.FAULT

    def _read_value(self, character: str) -> Stop | None:
        if character == '"':
            self._open_string()
        elif character in _BRACKETS:
            self._depth += _BRACKETS[character]
        elif not _BARE.match(character):
            return Stop.FAULT
        if self._depth == 0:
            self._close_member()
            return self._end()
        if self._depth == 1 and character == ",":
            self._close_member()
            self._expect = _Expect.KEY
        return None

    def _open_string(self) -> None:
        self._is_in_string = True
        self._string_start = self.position

    def _close_member(self) -> None:
        self.members[self.key] = (self._value_start, self.position)

    def _end(self) -> Stop:
        self.position += 1
        return Stop.END


class BracketScan:
    """Finds where an object or list ends, taking whatever is in it as it is.

    Args:
        closer: What also ends it where it stands outside of strings; "" if nothing does.
    """

    def __init__(self, closer: str = "") -> None:
        self._closer = closer
        self._depth = 0
        self._is_in_string = False
        self._is_escaped = False
        self._outside = re.compile(r'["{}\[\]' + re.escape(closer[:1]) + "]")
        self.is_done = False

    def take(self, text: str) -> int:
        """Return how many characters of `text` belong to it; what is left comes again next time.

        Mutates: the scan. Complexity: O(len(text)).
        """
        position = 0
        while position < len(text) and not self.is_done:
            if self._is_escaped:
                self._is_escaped = False
                position += 1
                continue
            pattern = _STRING_STOP if self._is_in_string else self._outside
            found = pattern.search(text, position)
            if found is None:
                return len(text)
            if found[0] == self._closer[:1] and self._may_close(text, found.start()):
                return found.start()
            position = found.end()
            self._pass(found[0])
        return position

    def _may_close(self, text: str, position: int) -> bool:
        """Whether the closer stands here, or may once more text has come."""
        if self._is_in_string:
            return False
        seen = text[position : position + len(self._closer)]
        self.is_done = seen == self._closer
        return self._closer.startswith(seen)

    def _pass(self, character: str) -> None:
        if character == "\\":
            self._is_escaped = True
        elif character == '"':
            self._is_in_string = not self._is_in_string
        elif character in _BRACKETS:
            self._depth += _BRACKETS[character]
            self.is_done = self._depth == 0
