"""Calls as Llama 3 models write them: the whole answer is one call, or some with ";" between.

    {"name": "search", "parameters": {"query": "parrots"}}; {"name": "now", "parameters": {}}

Models with tools of their own put ``<|python_tag|>`` in front; code behind it is text here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve.text.tool_calls.call_parser import CallMachine
from radixserve.text.tool_calls.object_scan import SPACE

if TYPE_CHECKING:
    from collections.abc import Callable


class LlamaParser(CallMachine):
    """Finds bare calls at the beginning of an answer, and calls behind the tag anywhere."""

    opener = "<|python_tag|>"
    needs_arguments = True

    def __init__(self, names: frozenset[str] | None, make_id: Callable[[], str]) -> None:
        super().__init__(names, make_id)
        self._state = self._read_beginning

    def _read_beginning(self) -> bool:
        start = len(self._rest) - len(self._rest.lstrip(SPACE))
        if start == len(self._rest):
            return False
        if self._rest[start] == "{":
            self._read_object(start)
        else:
            self._state = self._read_text
        return True

    def _read_opened(self, start: int) -> None:
        self._read_object(start)

    def _read_after(self) -> bool:
        self._skip(SPACE + "}")
        start = 1 if self._rest.startswith(";") else 0
        start += len(self._rest[start:]) - len(self._rest[start:].lstrip(SPACE))
        if start == len(self._rest):
            return False
        if self._rest[start] == "{":
            self._read_object(start)
        elif self._rest.startswith(";") and self.opener.startswith(self._rest[start:]):
            return False
        elif self._rest[start:].startswith(self.opener):
            self._read_object(start + len(self.opener))
        else:
            self._state = self._read_text
        return True
