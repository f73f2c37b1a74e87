"""Agent logs as text: one session a line, each prompt as a difference to an earlier one.

    {"session": "a-00", "requests": [
        {"t": 0.0, "ref": -1, "keep": 0, "add": "user: ...", "out_chars": 1548},
        {"t": 2.7, "ref": 0, "keep": 1294, "add": "...", "out_chars": 12}]}

A prompt is the first `keep` characters of the prompt of request `ref`, then `add`.

Source: LMCache's agent traces, github.com/LMCache/lmcache-agent-trace, re-encoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve.replay.readers.pseudo_tokens import pseudo_tokens
from radixserve.replay.readers.row import read_rows
from radixserve.replay.trace import TraceRequest
from radixserve.types import ID_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from radixserve.replay.readers.row import Row


def read_agent_logs(path: Path) -> Iterator[list[TraceRequest]]:
    """Yield the sessions, each with arrivals from its own start.

    Raises:
        ConfigError: a line is not such a session.
    """
    for row in read_rows(path):
        yield _session(row)


def _session(row: Row) -> list[TraceRequest]:
    prompts: list[str] = []
    requests: list[TraceRequest] = []
    for turn, fields in enumerate(row.rows("requests")):
        ref, keep = int(fields.number("ref")), fields.length("keep")
        if not -1 <= ref < turn:
            raise fields.error(f"ref must name an earlier request of the session; got {ref}")
        kept = prompts[ref][:keep] if ref >= 0 else ""
        prompts.append(kept + fields.text("add"))
        path = pseudo_tokens(prompts[-1])
        previous_s = requests[-1].arrival_s if requests else 0.0
        arrival_s = fields.number("t")
        requests.append(
            TraceRequest(
                arrival_s=arrival_s,
                path=path,
                prompt_len=len(path) // ID_BYTES,
                output_len=fields.length("out_chars") // ID_BYTES,
                session=row.text("session"),
                turn=turn,
                think_s=max(0.0, arrival_s - previous_s),
            )
        )
    return requests
