"""Azure's LLM inference traces of 2023: arrival times and lengths, nothing of the prompts.

    TIMESTAMP,ContextTokens,GeneratedTokens
    2023-11-16 18:15:46.6805900,374,44

No prompt shares anything with another, so the cache cannot help; arrivals and lengths are what
such a trace is for.

Source: Patel et al., Splitwise, ISCA 2024; github.com/Azure/AzurePublicDataset.
"""

from __future__ import annotations

from array import array
from datetime import datetime
from typing import TYPE_CHECKING

from radixserve.errors import ConfigError
from radixserve.replay.readers.row import read_lines
from radixserve.replay.trace import DEFAULT_BLOCK_SIZE, Trace, TraceRequest

if TYPE_CHECKING:
    from pathlib import Path

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
NUM_COLUMNS = 3
MICROSECOND_DIGITS = 6


def read_azure(path: Path) -> Trace:
    """Return the trace; every block of every prompt has an id of its own.

    Raises:
        ConfigError: a line is not a time and two lengths.
    """
    requests: list[TraceRequest] = []
    first_at: datetime | None = None
    next_id = 0
    for number, line in read_lines(path):
        if line.strip() == HEADER:
            continue
        try:
            at, prompt_len, output_len = _parse(line)
        except ValueError as error:
            raise ConfigError(f"{path.name}, line {number}: {error}") from None
        first_at = first_at or at
        num_blocks = prompt_len // DEFAULT_BLOCK_SIZE
        requests.append(
            TraceRequest(
                arrival_s=(at - first_at).total_seconds(),
                path=array("I", range(next_id, next_id + num_blocks)).tobytes(),
                prompt_len=prompt_len,
                output_len=output_len,
            )
        )
        next_id += num_blocks
    requests.sort(key=lambda request: request.arrival_s)
    return Trace(path.name, tuple(requests), tokens_per_id=DEFAULT_BLOCK_SIZE)


def _parse(line: str) -> tuple[datetime, int, int]:
    columns = line.strip().split(",")
    if len(columns) != NUM_COLUMNS:
        raise ValueError(f"{HEADER} wanted; got {line.strip()!r}")
    whole, _, fraction = columns[0].partition(".")
    at = datetime.fromisoformat(f"{whole}.{fraction[:MICROSECOND_DIGITS]:0<{MICROSECOND_DIGITS}}")
    prompt_len, output_len = int(columns[1]), int(columns[2])
    if min(prompt_len, output_len) < 0:
        raise ValueError(f"lengths must be at least 0; got {line.strip()!r}")
    return at, prompt_len, output_len
