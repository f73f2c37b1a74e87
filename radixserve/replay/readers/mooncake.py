"""Mooncake's traces: one request a line, prompts as ids of 512-token blocks.

    {"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2, ...]}

`timestamp` is in milliseconds. The last id may stand for a block that is not full.

Source: Qin et al., Mooncake, FAST 2025; github.com/kvcache-ai/Mooncake, FAST25-release/traces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve.replay.readers.row import read_rows
from radixserve.replay.trace import Trace, TraceRequest
from radixserve.types import ID_BYTES

if TYPE_CHECKING:
    from pathlib import Path

    from radixserve.replay.readers.row import Row

TOKENS_PER_ID = 512


def read_mooncake(path: Path) -> Trace:
    """Return the trace, in the order of the file.

    Raises:
        ConfigError: a line is not such a request.
    """
    requests = tuple(map(_request, read_rows(path)))
    return Trace(path.name, requests, tokens_per_id=TOKENS_PER_ID, block_size=TOKENS_PER_ID)


def _request(row: Row) -> TraceRequest:
    request = TraceRequest(
        arrival_s=row.number("timestamp") / 1000,
        path=row.ids("hash_ids"),
        prompt_len=row.length("input_length"),
        output_len=row.length("output_length"),
    )
    num_ids = len(request.path) // ID_BYTES
    if num_ids < request.prompt_len // TOKENS_PER_ID:
        raise row.error(f"{num_ids} hash_ids are too few for {request.prompt_len} tokens")
    return request
