"""Calls as Mistral models write them, before and after the change of 2025.

    [TOOL_CALLS][{"name": "search", "arguments": {"query": "parrots"}}, {...}]
    [TOOL_CALLS]search[ARGS]{"query": "parrots"}[TOOL_CALLS]now[ARGS]{}

The markers are special tokens: the answer's text must be made with them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from radixserve.text.tool_calls.call_parser import CallMachine
from radixserve.text.tool_calls.object_scan import SPACE

if TYPE_CHECKING:
    from collections.abc import Callable

_HEADER = re.compile(r"\s*([A-Za-z0-9_.\-]{1,128})(\[CALL_ID\]\w*)?(\[ARGS\])?\s*")
_HEADER_LEN = 256
_NO_HEADER = re.compile(r"[^\w.\-\[\]\s]")


class MistralParser(CallMachine):
    """Finds marked calls."""

    opener = "[TOOL_CALLS]"

    def __init__(self, names: frozenset[str] | None, make_id: Callable[[], str]) -> None:
        super().__init__(names, make_id)
        self._opened_at = 0

    def _read_opened(self, start: int) -> None:
        self._opened_at = start
        self._state = self._read_kind

    def _read_kind(self) -> bool:
        """A list or an object, or else a name."""
        body = self._rest[self._opened_at :].lstrip(SPACE)
        if not body:
            return False
        start = len(self._rest) - len(body)
        if body[0] in "[{":
            self._read_object(start + (body[0] == "["))
        else:
            self._state = self._read_name
        return True

    def _read_name(self) -> bool:
        brace = self._rest.find("{", self._opened_at)
        end = len(self._rest) if brace < 0 else brace
        wrong = _NO_HEADER.search(self._rest, self._opened_at, end)
        fault = min(wrong.start() if wrong else end, self._opened_at + _HEADER_LEN)
        if fault < end:
            return self._refuse(fault)
        if brace < 0:
            return False
        header = _HEADER.fullmatch(self._rest, self._opened_at, brace)
        name = self._checked_name(header[1]) if header else ""
        if not name:
            return self._refuse(brace)
        self._begin(name, brace, is_bare=True)
        return True

    def _read_after(self) -> bool:
        self._skip(SPACE + "}")
        if not self._rest:
            return False
        if self._is_next_of_list():
            self._read_object(1)
            return True
        self._rest = self._rest.removeprefix("]")
        self._state = self._read_between
        return True

    def _is_next_of_list(self) -> bool:
        return self._rest.startswith(",") and not self._is_bare

    def _read_between(self) -> bool:
        """White space behind calls is no text."""
        self._skip(SPACE)
        if not self._rest:
            return False
        self._state = self._read_text
        return True
