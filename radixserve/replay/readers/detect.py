"""Which reader a file needs, and the trace that it gives."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from radixserve.errors import ConfigError
from radixserve.replay.readers.agent_logs import read_agent_logs
from radixserve.replay.readers.azure import HEADER, read_azure
from radixserve.replay.readers.coding_sessions import read_coding_sessions
from radixserve.replay.readers.dialogues import read_dialogues
from radixserve.replay.readers.few_shot import read_few_shot
from radixserve.replay.readers.mooncake import read_mooncake
from radixserve.replay.readers.openai_batch import read_openai_batch
from radixserve.replay.readers.row import read_lines, read_rows
from radixserve.replay.readers.superposition import superpose
from radixserve.replay.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any

    from radixserve.replay.trace import TraceRequest

TEXT_SPAN_S = 3600.0
SESSION_TEXTS = ("agent-logs", "dialogues")
"""Formats of text sessions: several such files can be laid over one another."""
FORMATS = ("mooncake", "coding-sessions", "azure", "few-shot", "openai-batch", *SESSION_TEXTS)


def read_trace(paths: Sequence[Path], *, span_s: float | None = None, seed: int = 0) -> Trace:
    """Read a trace from one file or folder, or from several files of text sessions.

    Args:
        span_s: Seconds in which sessions start; as in the format's description when None.
        seed: For everything that is drawn: session starts, shuffles, times that are not recorded.
    Raises:
        ConfigError: a file cannot be read, is of no known format, or is malformed.
    """
    formats = [detect_format(path) for path in paths]
    if all(each in SESSION_TEXTS for each in formats):
        sessions = chain.from_iterable(map(_text_sessions, paths, formats))
        requests = superpose(sessions, span_s=span_s or TEXT_SPAN_S, seed=seed)
        trace = Trace(" + ".join(path.name for path in paths), requests)
    elif len(paths) == 1:
        trace = _read_one(paths[0], formats[0], span_s=span_s, seed=seed)
    else:
        raise ConfigError("only files of text sessions can be replayed together, one trace a run")
    if not trace.requests:
        raise ConfigError(f"the trace {trace.name} has no requests")
    return trace


def detect_format(path: Path) -> str:
    """Return the name of a file's format, by its first line.

    Raises:
        ConfigError: it is none that is known.
    """
    if path.is_dir():
        return "few-shot"
    first = next(read_lines(path), (0, ""))[1]
    if first.strip() == HEADER:
        return "azure"
    row = next(read_rows(path), None)
    found = _format_of(row.fields) if row is not None else None
    if found is None:
        raise ConfigError(f"{path.name} is of no known format: {', '.join(FORMATS)}")
    return found


def _format_of(fields: dict[str, Any]) -> str | None:
    if "hash_ids" in fields:
        return "mooncake"
    if "requests" in fields:
        return "coding-sessions" if "block_size" in fields else "agent-logs"
    if "body" in fields or "prompt" in fields or "model" in fields:
        return "openai-batch"
    if "system" in fields or "messages" in fields:
        return "dialogues"
    return None


def _text_sessions(path: Path, name: str) -> list[list[TraceRequest]]:
    return list(read_agent_logs(path) if name == "agent-logs" else read_dialogues(path))


def _read_one(path: Path, name: str, *, span_s: float | None, seed: int) -> Trace:
    if name == "coding-sessions":
        return read_coding_sessions(path, span_s=span_s, seed=seed)
    if name == "few-shot":
        return read_few_shot(path, seed=seed)
    plain = {"mooncake": read_mooncake, "azure": read_azure, "openai-batch": read_openai_batch}
    return plain[name](path)
