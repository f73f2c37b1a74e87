"""`StepTimes`: laps account for all of the time, and nothing else does."""

from __future__ import annotations

from itertools import count

import pytest

from radixserve.runtime.step_times import FORWARD, PARTS, StepTimes, host_share


def test_each_lap_is_the_time_since_the_last_one() -> None:
    times = StepTimes(clock=iter([0.0, 1.0, 3.0, 7.0]).__next__)
    times.lap("schedule")
    times.lap("forward")
    times.lap("schedule")
    assert times.seconds == {**dict.fromkeys(PARTS, 0.0), "schedule": 5.0, "forward": 2.0}


def test_what_is_skipped_is_nobodys() -> None:
    times = StepTimes(clock=map(float, count()).__next__)
    times.lap("land")
    times.skip()
    times.lap("between")
    assert times.seconds["land"] == times.seconds["between"] == 1.0


def test_the_hosts_share_is_all_but_the_model() -> None:
    seconds = dict.fromkeys(PARTS, 1.0)
    assert host_share(seconds) == pytest.approx(1 - len(FORWARD) / len(PARTS))
    assert host_share(dict.fromkeys(PARTS, 0.0)) == 0.0
