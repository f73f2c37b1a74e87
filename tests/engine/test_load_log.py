"""The line about the load: rates between two moments, and silence where nothing happens."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import TYPE_CHECKING, Any

import pytest

from radixserve.engine.load_log import load_line, log_load
from tests.kit.engines import ask, until

if TYPE_CHECKING:
    from radixserve.core.stats import SchedulerStats
    from tests.engine.conftest import MakeEngine, StartEngine

PROMPT = list(range(10, 46))


@pytest.fixture
def at_rest(make_engine: MakeEngine) -> SchedulerStats:
    return make_engine(num_blocks=100).core.stats()


def later(stats: SchedulerStats, **changes: Any) -> SchedulerStats:
    return dataclasses.replace(stats, **changes)


def test_a_line_tells_rates_between_two_moments(at_rest: SchedulerStats) -> None:
    before = later(at_rest, prompt_tokens=100, cached_tokens=100, output_tokens=10, preemptions=3)
    after = later(
        before,
        steps=9,
        prompt_tokens=300,
        cached_tokens=250,
        output_tokens=50,
        num_running=4,
        num_waiting=7,
        private_blocks=10,
        protected_blocks=15,
    )
    assert load_line(before, after, 10.0) == (
        "running 4, waiting 7, prompt 20.0 tokens/s, output 4.0 tokens/s, hit rate 75.0%, "
        "KV use 25.0%"
    )
    preempted = load_line(before, later(after, preemptions=5), 10.0)
    assert preempted is not None
    assert preempted.endswith(", preemptions 2")


def test_the_hit_rate_is_the_intervals_own_or_none(at_rest: SchedulerStats) -> None:
    before = later(at_rest, prompt_tokens=100, cached_tokens=100)
    line = load_line(before, later(before, steps=1, num_running=1), 1.0)
    assert line is not None
    assert "hit rate -," in line


def test_nothing_to_tell_is_no_line(at_rest: SchedulerStats) -> None:
    assert load_line(at_rest, at_rest, 10.0) is None


def test_what_waits_without_a_step_is_told(at_rest: SchedulerStats) -> None:
    line = load_line(at_rest, later(at_rest, num_waiting=2), 10.0)
    assert line is not None
    assert line.startswith("running 0, waiting 2")


async def test_lines_come_while_requests_run_and_no_more_after_them(
    start_engine: StartEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await start_engine()

    def lines() -> list[str]:
        found = [r for r in caplog.records if r.name == "radixserve.engine.load_log"]
        return [record.getMessage() for record in found]

    with caplog.at_level(logging.INFO, logger="radixserve.engine.load_log"):
        task = asyncio.create_task(log_load(engine.core, interval_s=0.001))
        async with engine.submit(ask(PROMPT, max_tokens=100)) as stream:
            await until(lambda: any(line.startswith("running 1, waiting 0") for line in lines()))
            async for _ in stream:
                pass
        await asyncio.sleep(0.05)  # the interval of the last step is over by any clock
        before = len(lines())
        await asyncio.sleep(0.05)
        assert len(lines()) == before
        task.cancel()
        await asyncio.wait([task])


async def test_where_the_time_went_is_told_on_request(
    start_engine: StartEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await start_engine()
    with caplog.at_level(logging.INFO, logger="radixserve.engine.load_log"):
        task = asyncio.create_task(log_load(engine.core, interval_s=0.001, step_times=True))
        async with engine.submit(ask(PROMPT, max_tokens=50)) as stream:
            async for _ in stream:
                pass
        await until(lambda: any(" steps of " in record.getMessage() for record in caplog.records))
        task.cancel()
        await asyncio.wait([task])
