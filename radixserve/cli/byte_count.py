"""Byte counts as people write and read them: "2GiB", "500MB"."""

from __future__ import annotations

import re

from radixserve.errors import ConfigError

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_PATTERN = re.compile(r"(\d+(?:\.\d+)?) ?([a-z]*)")


def parse_byte_count(text: str) -> int:
    """Return the bytes that `text` stands for: a number, or one with B, kB, MB, GiB and the like.

    Raises:
        ConfigError: it is no number, or the unit is unknown.
    """
    match = _PATTERN.fullmatch(text.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise ConfigError(f"a byte count is a number as in 2GiB, 500MB or 1048576; got {text!r}")
    return int(float(match[1]) * _UNITS[match[2]])


def format_byte_count(count: int) -> str:
    """Return `count` bytes in the largest binary unit that leaves a number of at least 1."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
