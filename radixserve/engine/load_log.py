"""A log line about the load every few seconds, while there is any."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve.core.stats import SchedulerStats

_log = logging.getLogger(__name__)


def load_line(before: SchedulerStats, after: SchedulerStats, seconds: float) -> str | None:
    """Return what happened between two moments; None if nothing did and nothing waits.

    Args:
        seconds: Between the two.
    """
    is_idle = after.steps == before.steps and after.num_running == after.num_waiting == 0
    if is_idle or seconds <= 0:
        return None
    prompt = after.prompt_tokens - before.prompt_tokens
    cached = after.cached_tokens - before.cached_tokens
    output = after.output_tokens - before.output_tokens
    words = [
        f"running {after.num_running}",
        f"waiting {after.num_waiting}",
        f"prompt {prompt / seconds:.1f} tokens/s",
        f"output {output / seconds:.1f} tokens/s",
        f"hit rate {cached / prompt:.1%}" if prompt else "hit rate -",
        f"KV use {after.kv_usage:.1%}",
    ]
    preemptions = after.preemptions - before.preemptions
    if preemptions:
        words.append(f"preemptions {preemptions}")
    return ", ".join(words)


async def log_load(stats: Callable[[], SchedulerStats], *, interval_s: float) -> None:
    """Log a line at each interval that had something to do; runs until it is cancelled.

    Args:
        stats: Called once an interval, on the event loop.
        interval_s: Above 0.
    """
    before, then = stats(), time.monotonic()
    while True:
        await asyncio.sleep(interval_s)
        after, now = stats(), time.monotonic()
        line = load_line(before, after, now - then)
        if line is not None:
            _log.info("%s", line)
        before, then = after, now
