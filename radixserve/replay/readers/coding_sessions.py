"""Coding-agent sessions: one session a line, prompts as runs of ids of 64-token blocks.

    {"session": "0001", "block_size": 64, "requests": [
        {"t": 0.0, "in": 71175, "out": 169, "stop": "tool_use", "think": 0.0, "runs": [[1, 1112]]}]}

Ids belong to their session. A run is [first id, count].

Source: kv-cache-tester's traces, github.com/callanjfox/kv-cache-tester, re-encoded.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from radixserve.replay.readers.row import read_rows
from radixserve.replay.readers.superposition import superpose
from radixserve.replay.trace import Trace, TraceRequest

if TYPE_CHECKING:
    from pathlib import Path

    from radixserve.replay.readers.row import Row
    from radixserve.types import PackedIds

SPAN_S = 8 * 3600.0


def read_coding_sessions(path: Path, *, span_s: float | None = None, seed: int = 0) -> Trace:
    """Return all sessions, superposed.

    Raises:
        ConfigError: a line is not such a session, or block sizes differ.
    """
    sessions = []
    ids = _Ids()
    block_size = 0
    for row in read_rows(path):
        block_size = block_size or row.length("block_size")
        if block_size < 1 or row.length("block_size") != block_size:
            raise row.error("block_size must be the same in all sessions, and at least 1")
        sessions.append(_session(row, ids))
    requests = superpose(sessions, span_s=span_s or SPAN_S, seed=seed)
    return Trace(path.name, requests, tokens_per_id=block_size or 1, block_size=block_size or 1)


class _Ids:
    """Gives each session ids of its own. Runs are cut out of one array: there are millions."""

    def __init__(self) -> None:
        self._all = array("I")
        self._first = 0

    def path(self, runs: list[tuple[int, int]]) -> PackedIds:
        """Return the packed ids of a session's runs."""
        end = self._first + max((first + count for first, count in runs), default=0)
        self._all.extend(range(len(self._all), end))
        path = array("I")
        for first, count in runs:
            path += self._all[self._first + first : self._first + first + count]
        return path.tobytes()

    def next_session(self) -> None:
        """What was given out so far belongs to one session and will not come again."""
        self._first = len(self._all)


def _session(row: Row, ids: _Ids) -> list[TraceRequest]:
    ids.next_session()
    return [
        TraceRequest(
            arrival_s=fields.number("t"),
            path=ids.path(_runs(fields)),
            prompt_len=fields.length("in"),
            output_len=fields.length("out"),
            session=row.text("session"),
            turn=turn,
            think_s=max(0.0, fields.number("think", 0.0)),
            stop=fields.text("stop", ""),
        )
        for turn, fields in enumerate(row.rows("requests"))
    ]


def _runs(row: Row) -> list[tuple[int, int]]:
    runs = row.items("runs")
    for run in runs:
        is_run = isinstance(run, list) and len(run) == 2 and all(type(n) is int for n in run)
        if not is_run or min(run) < 0:
            raise row.error(f"a run is [first id, count]; got {run!r}")
    return [(first, count) for first, count in runs]
