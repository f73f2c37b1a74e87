"""What all parsers of tool calls share: the steps from text to a call and back.

    text ---opener---> head ---{"name": "f", "arguments": {---> arguments ---}---> members
     ^                  |                                                             |
     +---- a fault <----+                              after <-----------}------------+
     +---------------------------------------------------+

What may be an opener, and all that follows it until a call's name and the first brace of its
arguments are known, is held back. Then the call has begun: its arguments go out as they come, as
the model wrote them, even if they turn out not to be JSON. What is no call after all goes out as
text. White space around calls goes out with neither.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

from radixserve.text.tool_calls.events import ArgumentsPiece, CallStart, TextPiece, add_text
from radixserve.text.tool_calls.object_scan import SPACE, BracketScan, ObjectScan, Stop

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve.text.tool_calls.events import CallEvent

ARGUMENTS = ('"arguments"', '"parameters"')


class ToolCallParser(Protocol):
    """Finds the calls in one answer."""

    def push(self, text: str) -> list[CallEvent]:
        """Take in more text and return what is certain by now.

        The events do not depend on how the text is cut into pieces, save that pieces of text and
        of arguments may be cut elsewhere.

        Mutates: the parser. Complexity: O(len(text)), amortized.
        """
        ...

    def flush(self) -> list[CallEvent]:
        """Return what is left now that no more text follows. Mutates: the parser."""
        ...


class CallMachine(ABC):
    """A parser whose state is the method that reads on.

    Args:
        names: The functions that may be called; a parser for calls without an opener needs it to
            tell a call from an object in the text. None: any.
        make_id: Makes the ids of calls.
    """

    opener = ""
    """What begins a call in the middle of text."""
    closer = ""
    """What ends a call even inside its arguments."""
    needs_arguments = False
    """Whether an object without arguments is no call."""

    def __init__(self, names: frozenset[str] | None, make_id: Callable[[], str]) -> None:
        self._names = names
        self._make_id = make_id
        self._num_calls = 0
        self._rest = ""
        """Text that has not gone out."""
        self._events: list[CallEvent] = []
        self._state: Callable[[], bool] = self._read_text
        self._head = ObjectScan(0)
        self._object_start = 0
        self._arguments = BracketScan()
        self._is_bare = False
        """Whether the arguments stand alone, not in an object with the name."""

    def push(self, text: str) -> list[CallEvent]:
        """Take in more text; see `ToolCallParser`."""
        self._rest += text
        while self._state():
            pass
        events, self._events = self._events, []
        return events

    def flush(self) -> list[CallEvent]:
        """Return what is left; see `ToolCallParser`."""
        rest, self._rest = self._rest, ""
        if self._state == self._read_arguments:
            self._give_arguments(rest)
        elif self._state not in (self._read_members, self._read_more_members, self._read_after):
            add_text(self._events, rest)
        self._state = self._read_text
        events, self._events = self._events, []
        return events

    # -- states: each reads from `_rest` and says whether to go on at once --------------------

    def _read_text(self) -> bool:
        start = self._rest.find(self.opener)
        if start < 0:
            self._give_text(_before_space(self._rest, _opening_at(self._rest, self.opener)))
            return False
        before = _before_space(self._rest, start)
        self._give_text(before)
        self._read_opened(start - before + len(self.opener))
        return True

    @abstractmethod
    def _read_opened(self, start: int) -> None:
        """Choose the state after an opener; `_rest[:start]` is held with it."""

    def _read_object(self, start: int) -> None:
        """Expect an object at `_rest[start:]`; what is before it goes out if it is no call."""
        self._object_start = start
        self._head = ObjectScan(start)
        self._state = self._read_head

    def _read_head(self) -> bool:
        while True:
            stop = self._head.advance(self._rest)
            if stop is Stop.MORE:
                return False
            if stop is Stop.FAULT:
                return self._refuse(self._head.position)
            if stop is Stop.END:
                return self._read_whole()
            name = self._name_so_far()
            if name and self._head.key in ARGUMENTS and self._rest[self._head.position] == "{":
                self._begin(name, self._head.position, is_bare=False)
                return True

    def _name_so_far(self) -> str:
        """The function's name if it is known, complete and may be called; else ""."""
        if '"name"' not in self._head.members:
            return ""
        start, end = self._head.members['"name"']
        return self._checked_name(_parsed(self._rest[start:end]))

    def _checked_name(self, name: Any) -> str:
        if not isinstance(name, str) or (self._names is not None and name not in self._names):
            return ""
        return name

    def _begin(self, name: str, start: int, *, is_bare: bool) -> None:
        self._give_start(name)
        self._rest = self._rest[start:]
        self._arguments = BracketScan(self.closer)
        self._is_bare = is_bare
        self._state = self._read_arguments

    def _read_whole(self) -> bool:
        """A complete object whose arguments could not go out earlier."""
        end = self._head.position
        value = _parsed(self._rest[self._object_start : end])
        name = self._checked_name(value.get("name")) if isinstance(value, dict) else ""
        arguments = self._whole_arguments()
        if not name or arguments is None:
            return self._refuse(end)
        self._rest = self._rest[end:]
        self._give_start(name)
        self._give_arguments(arguments)
        self._state = self._read_after
        return True

    def _whole_arguments(self) -> str | None:
        """The arguments as JSON text; None if they are not an object.

        Some models write the object as a string, and leave it out where it would be empty.
        """
        found = [self._head.members[key] for key in ARGUMENTS if key in self._head.members]
        if not found:
            return None if self.needs_arguments else "{}"
        raw = self._rest[slice(*found[0])].strip(SPACE)
        value = _parsed(raw)
        if isinstance(value, str):
            raw, value = value, _parsed(value)
        if value is None and raw in ("null", ""):
            return "{}"
        return raw if isinstance(value, dict) else None

    def _read_arguments(self) -> bool:
        length = self._arguments.take(self._rest)
        self._give_arguments(self._rest[:length])
        self._rest = self._rest[length:]
        if self._arguments.is_done:
            self._state = self._read_after if self._is_bare else self._read_members
        return self._arguments.is_done

    def _read_members(self) -> bool:
        """What follows the arguments in their object: mostly its end, sometimes an id."""
        self._skip(SPACE)
        if not self._rest:
            return False
        if self._rest.startswith(","):
            self._head = ObjectScan(1, is_open=True)
            self._state = self._read_more_members
        else:
            self._rest = self._rest.removeprefix("}")
            self._state = self._read_after
        return True

    def _read_more_members(self) -> bool:
        stop = Stop.VALUE
        while stop is Stop.VALUE:
            stop = self._head.advance(self._rest)
        if stop is Stop.END:
            self._rest = self._rest[self._head.position :]
            self._state = self._read_after
        elif stop is Stop.FAULT:
            return self._refuse(self._head.position)
        return stop is Stop.END

    @abstractmethod
    def _read_after(self) -> bool:
        """Read on behind a call."""

    # -- what the states do --------------------------------------------------------------------

    def _refuse(self, end: int) -> bool:
        """It is no call: `_rest[:end]` is text."""
        self._give_text(end)
        self._state = self._read_text
        return True

    def _skip(self, characters: str) -> None:
        self._rest = self._rest.lstrip(characters)

    def _give_text(self, end: int) -> None:
        add_text(self._events, self._rest[:end])
        self._rest = self._rest[end:]

    def _give_start(self, name: str) -> None:
        self._events.append(CallStart(self._num_calls, self._make_id(), name))
        self._num_calls += 1

    def _give_arguments(self, text: str) -> None:
        if text:
            self._events.append(ArgumentsPiece(self._num_calls - 1, text))


class PassThrough:
    """The parser of an answer in which no tool can be called: everything is text."""

    def push(self, text: str) -> list[CallEvent]:
        """Return the text."""
        return [TextPiece(text)] if text else []

    def flush(self) -> list[CallEvent]:
        """Return nothing: nothing was held."""
        return []


def _parsed(text: str) -> Any:
    """Return a JSON value, None if it is none; line breaks in strings are let pass."""
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None


def _opening_at(text: str, opener: str) -> int:
    """The first place from which the rest of the text is a beginning of the opener."""
    for start in range(max(0, len(text) - len(opener) + 1), len(text)):
        if opener.startswith(text[start:]):
            return start
    return len(text)


def _before_space(text: str, end: int) -> int:
    """The place where the white space before `end` begins."""
    return len(text[:end].rstrip(SPACE))
