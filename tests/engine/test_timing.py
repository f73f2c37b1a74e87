"""Moments of a request, and the histograms that they go into."""

from __future__ import annotations

import pytest
from prometheus_client.core import HistogramMetricFamily

from radixserve.engine.histogram import Histogram
from radixserve.engine.timing import Timing


def test_the_parts_of_a_request_add_up() -> None:
    timing = Timing(10.0)
    timing.started_at = 12.0
    assert timing.saw(0, 13.0) is None
    assert timing.saw(1, 15.0) is None
    assert timing.saw(1, 16.0) == 1.0
    assert timing.saw(4, 18.0) == 0.5
    assert (timing.queue_s, timing.prefill_s, timing.decode_s) == (2.0, 3.0, 3.0)
    assert (timing.ttft_s, timing.e2e_s) == (5.0, 8.0)
    assert timing.tpot_s == pytest.approx(3.0 / 5)


def test_what_did_not_happen_has_no_time() -> None:
    timing = Timing(10.0)
    for name in ("queue_s", "prefill_s", "decode_s", "ttft_s", "tpot_s", "e2e_s"):
        assert getattr(timing, name) is None
    timing.saw(1, 11.0)
    assert timing.tpot_s is None
    assert timing.decode_s == 0.0


def shown(histogram: Histogram) -> dict[str, float]:
    family = HistogramMetricFamily("h", "text", labels=("who",))
    histogram.add_to(family, ("me",))
    return {s.name + s.labels.get("le", ""): s.value for s in family.samples}


def test_a_value_on_a_bound_is_in_its_bucket_and_buckets_accumulate() -> None:
    histogram = Histogram((1, 2.5))
    for value in (0.5, 1.0, 2.0, 9.0):
        histogram.observe(value)
    histogram.observe(2.5, count=3)
    assert shown(histogram) == {
        "h_bucket1.0": 2,
        "h_bucket2.5": 6,
        "h_bucket+Inf": 7,
        "h_count": 7,
        "h_sum": pytest.approx(20.0),
    }


def test_an_empty_histogram_shows_zeros() -> None:
    assert set(shown(Histogram((1,))).values()) == {0}
