"""Where the time of the steps went: every part is counted, and the line adds up."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from radixserve.engine.step_log import StepMoment, step_line
from radixserve.runtime.step_times import PARTS
from tests.kit.engines import ask

if TYPE_CHECKING:
    from tests.engine.conftest import MakeEngine

PROMPT = list(range(10, 46))


def moment(steps: int, scale: float, **kernels: float) -> StepMoment:
    return StepMoment(steps, {part: scale * (i + 1) for i, part in enumerate(PARTS)}, kernels)


def test_the_line_tells_milliseconds_a_step_and_the_hosts_share() -> None:
    before, after = moment(10, 0.001, linear=1.0), moment(14, 0.005, linear=1.008, head=0.02)
    # Each part has grown by 4 ms times its place, in four steps.
    assert step_line(before, after) == (
        "4 steps of 55.00 ms: between 1.00, schedule 2.00, hand_over 3.00, prepare 4.00, "
        "launch 5.00, forward 6.00, logits 7.00, sample 8.00, wait 9.00, land 10.00; "
        "kernels: head 5.00, linear 2.00; host 60.0%"
    )


def test_what_took_no_time_is_not_told() -> None:
    before = StepMoment(0, dict.fromkeys(PARTS, 0.0), {})
    after = StepMoment(2, {**before.parts, "forward": 0.03, "land": 0.01}, {})

    assert step_line(before, after) == ("2 steps of 20.00 ms: forward 15.00, land 5.00; host 25.0%")


def test_no_step_is_no_line_and_no_kernels_are_not_told() -> None:
    assert step_line(moment(3, 1.0), moment(3, 1.0)) is None
    line = step_line(moment(3, 1.0), moment(4, 2.0))
    assert line is not None
    assert "kernels" not in line


def test_the_parts_of_the_steps_are_the_time_of_the_steps(make_engine: MakeEngine) -> None:
    engine = make_engine()
    core = engine.core
    assert not any(core.times.seconds.values()), "loading and warming up are no serving"
    core.begin(ask(PROMPT, max_tokens=20))
    spent = 0.0
    while core.has_work:
        time.sleep(0.001)  # the caller's time, which is nobody's
        start = time.perf_counter()
        core.step()
        spent += time.perf_counter() - start
    assert sum(core.times.seconds.values()) == pytest.approx(spent, rel=0.05)
    idle = {"between", "launch", "wait"}  # the last two are for a device
    assert {part for part, seconds in core.times.seconds.items() if not seconds} <= idle


def test_a_scrape_shows_every_part(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.generate([PROMPT])
    families = {family.name: family for family in engine.core.metrics.registry.collect()}
    samples = families["radixserve:step_seconds"].samples
    assert {sample.labels["part"] for sample in samples} == set(PARTS)
