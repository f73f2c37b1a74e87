"""Calls as Hermes and Qwen models write them.

    Let me look.
    <tool_call>
    {"name": "search", "arguments": {"query": "parrots"}}
    </tool_call>

Several calls have a tag each; some models put several objects into one tag.
"""

from __future__ import annotations

from radixserve.text.tool_calls.call_parser import CallMachine
from radixserve.text.tool_calls.object_scan import SPACE


class HermesParser(CallMachine):
    """Finds tagged calls."""

    opener = "<tool_call>"
    closer = "</tool_call>"

    def _read_opened(self, start: int) -> None:
        self._read_object(start)

    def _read_after(self) -> bool:
        self._skip(SPACE + "}")
        if self._rest.startswith("{"):
            self._read_object(0)
            return True
        if self._rest.startswith(self.closer):
            self._rest = self._rest.removeprefix(self.closer)
            self._state = self._read_between
            return True
        if self.closer.startswith(self._rest):
            return False
        self._state = self._read_text
        return True

    def _read_between(self) -> bool:
        """White space behind a closed tag is no text."""
        self._skip(SPACE)
        if not self._rest:
            return False
        self._state = self._read_text
        return True
