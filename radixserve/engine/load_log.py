"""A log line about the load every few seconds, while there is any."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from radixserve.engine.step_log import StepMoment, step_line

if TYPE_CHECKING:
    from radixserve.core.stats import SchedulerStats
    from radixserve.engine.engine_core import EngineCore

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


async def log_load(core: EngineCore, *, interval_s: float, step_times: bool = False) -> None:
    """Log a line at each interval that had something to do; runs until it is cancelled.

    Args:
        core: Asked once an interval, on the event loop.
        interval_s: Above 0.
        step_times: Whether a second line tells where the time went.
    """
    before, then, spent = core.stats(), time.monotonic(), StepMoment.of(core)
    while True:
        await asyncio.sleep(interval_s)
        after, now = core.stats(), time.monotonic()
        line = load_line(before, after, now - then)
        if line is not None:
            _log.info("%s", line)
        before, then = after, now
        if step_times:
            spent_now = StepMoment.of(core)
            line = step_line(spent, spent_now)
            if line is not None:
                _log.info("%s", line)
                spent = spent_now  # a step longer than the interval is told of when it is over
