"""Prompts from a JSON Lines file: ``{"prompt": text or token ids, "output_tokens": 64}``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from radixserve.bench.workload import single
from radixserve.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from radixserve.bench.workload import Session


def read_custom(path: Path, *, count: int | None, output_len: int) -> list[Session]:
    """Return the file's prompts in its order, the first `count` if a number is given.

    Args:
        output_len: Of lines that have no `output_tokens`.

    Raises:
        ConfigError: the file cannot be read, is empty, or a line is not understood.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the prompts in {path}: {error}") from error
    sessions = [
        _session(line, f"{path}:{number}", output_len)
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not sessions:
        raise ConfigError(f"{path} has no prompts")
    return sessions[:count]


def _session(line: str, place: str, output_len: int) -> Session:
    try:
        entry = json.loads(line)
        prompt, length = entry["prompt"], entry.get("output_tokens", output_len)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f'{place}: a line is {{"prompt": ..., "output_tokens": 64}}') from error
    if not isinstance(length, int) or isinstance(length, bool) or length < 1:
        raise ConfigError(f"{place}: output_tokens must be a number, 1 at least; got {length!r}")
    if isinstance(prompt, str) and prompt:
        return single(place, (prompt,), length)
    if _are_ids(prompt):
        return single(place, (tuple(prompt),), length)
    raise ConfigError(f"{place}: prompt must be a text or a list of token ids, and not empty")


def _are_ids(prompt: Any) -> bool:
    return (
        isinstance(prompt, list)
        and bool(prompt)
        and all(isinstance(token, int) and not isinstance(token, bool) for token in prompt)
    )
