"""What a server counts itself, from its Prometheus metrics: radixserve's names, or vLLM's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp

if TYPE_CHECKING:
    from radixserve.engine.async_engine import AsyncEngine

PREFIXES = ("radixserve:", "vllm:")
"""The first that a server has is read; radixserve has both."""
_LINE = re.compile(r"^(\w+:)(\w+)_total(?:\{[^}]*\})? ([0-9.eE+-]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ServerCounters:
    """Counters since a server's start, or their growth over a run."""

    preemptions: int
    queried_tokens: int
    hit_tokens: int

    def __sub__(self, earlier: ServerCounters) -> ServerCounters:
        return ServerCounters(
            self.preemptions - earlier.preemptions,
            self.queried_tokens - earlier.queried_tokens,
            self.hit_tokens - earlier.hit_tokens,
        )


def parse_counters(text: str) -> ServerCounters | None:
    """Return the counters of a metrics page, None if it has no preemptions under a known name."""
    sums: dict[tuple[str, str], float] = {}
    for prefix, name, value in _LINE.findall(text):
        sums[prefix, name] = sums.get((prefix, name), 0.0) + float(value)
    for prefix in PREFIXES:
        if (prefix, "num_preemptions") in sums:
            names = ("num_preemptions", "prefix_cache_queries", "prefix_cache_hits")
            return ServerCounters(*(int(sums.get((prefix, name), 0)) for name in names))
    return None


async def fetch_counters(session: aiohttp.ClientSession) -> ServerCounters | None:
    """Return a server's counters now, None where it has no metrics that are understood."""
    try:
        async with session.get("/metrics") as response:
            return parse_counters(await response.text()) if response.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None


def engine_counters(engine: AsyncEngine) -> ServerCounters:
    """Return the counters of an engine in this process."""
    stats = engine.stats()
    return ServerCounters(stats.preemptions, stats.prompt_tokens, stats.cached_tokens)
