"""Traces of a few requests, written by hand or drawn by hypothesis; files of each format."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from radixserve.replay.trace import Trace, TraceRequest
from radixserve.types import pack_ids

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path
    from typing import Any


def make_trace(paths: Iterable[Sequence[int]], *, block_size: int = 1) -> Trace:
    """Return a trace of prompts, one token an id, one request a second."""
    requests = tuple(
        TraceRequest(arrival_s=float(number), path=pack_ids(path), prompt_len=len(path))
        for number, path in enumerate(paths)
    )
    return Trace("by hand", requests, block_size=block_size)


def paths(*, most_requests: int, most_ids: int) -> st.SearchStrategy[list[list[int]]]:
    """Draw prompts over two ids, so that prefixes are shared and branch all the time."""
    path = st.lists(st.integers(0, 1), min_size=1, max_size=most_ids)
    return st.lists(path, min_size=1, max_size=most_requests)


def write_rows(path: Path, rows: Iterable[Any]) -> Path:
    """Write a JSON Lines file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def mooncake_rows() -> list[dict[str, Any]]:
    """Four requests over 512-token blocks; the second and the last extend the first."""
    hashes = [[0, 1, 2], [0, 1, 3, 4], [5, 6], [0, 1, 3, 7]]
    return [
        {
            "timestamp": 1000 * number,
            "input_length": 512 * len(ids) - 100,
            "output_length": 32,
            "hash_ids": ids,
        }
        for number, ids in enumerate(hashes)
    ]
