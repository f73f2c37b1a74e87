"""Requests that were served well enough: within limits on their latencies."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from radixserve.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from radixserve.bench.target import Outcome

LIMITED = ("ttft", "tpot", "e2el")


def parse_limits(words: Iterable[str]) -> dict[str, float]:
    """Return limits in milliseconds from words such as ``ttft:500``.

    Raises:
        ConfigError: a word is not understood.
    """
    limits = {}
    for word in words:
        name, _, text = word.partition(":")
        try:
            limit = float(text)
        except ValueError:
            limit = math.nan
        if name not in LIMITED or not limit > 0:
            raise ConfigError(
                f"a goodput limit is one of {', '.join(LIMITED)}, a colon and milliseconds, as in "
                f"ttft:500; got {word!r}"
            )
        limits[name] = limit
    return limits


def is_good(outcome: Outcome, limits_ms: Mapping[str, float]) -> bool:
    """Whether a request has succeeded and kept all limits; one output token has no TPOT to keep."""
    if outcome.failure is not None:
        return False
    found = {"ttft": outcome.ttft_s, "tpot": outcome.tpot_s, "e2el": outcome.latency_s}
    return all(1e3 * (found[name] or 0.0) <= limit for name, limit in limits_ms.items())
