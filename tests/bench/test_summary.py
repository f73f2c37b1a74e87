"""Outcomes as numbers: quantiles, goodput, errors, hit rates, the table and the JSON."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve.bench.counters import ServerCounters, parse_counters
from radixserve.bench.goodput import is_good, parse_limits
from radixserve.bench.load import Load
from radixserve.bench.result_file import details_json, result_json
from radixserve.bench.spread import Spread, percentile
from radixserve.bench.stream_events import parse_line
from radixserve.bench.summary import ErrorCount, Metric, summarise
from radixserve.bench.table import format_table
from radixserve.bench.target import Failure, Outcome, TokenCounts
from radixserve.errors import ConfigError


def outcome(
    *times: float, prompt: int = 100, cached: int | None = 40, output: int | None = None
) -> Outcome:
    """A request whose output came at these times and ended a tenth of a second later."""
    counts = TokenCounts(prompt, cached, len(times) if output is None else output)
    return Outcome(name="a", counts=counts, chunk_times=times, latency_s=times[-1] + 0.1)


def failed(kind: str, detail: str = "") -> Outcome:
    """A request that failed."""
    return Outcome(name="b", failure=Failure(kind, detail))


# One request


def test_latencies_of_a_request() -> None:
    one = outcome(0.5, 0.7, 1.0)
    assert one.ttft_s == 0.5
    assert one.tpot_s == pytest.approx(0.25)
    assert one.gaps_s == pytest.approx([0.2, 0.3])


def test_pieces_of_several_tokens_count_in_tokens() -> None:
    assert outcome(0.5, 1.5, output=5).tpot_s == pytest.approx(0.25)


def test_a_single_token_has_no_time_per_further_token() -> None:
    assert outcome(0.5).tpot_s is None
    assert outcome(0.5, output=1).gaps_s == []


def test_output_tokens_are_counted_by_what_is_known() -> None:
    assert Outcome(name="a", token_ids=(1, 2, 3), chunk_times=(0.1,)).output_tokens == 3
    assert Outcome(name="a", chunk_times=(0.1, 0.2)).output_tokens == 2


# Many


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=50))
def test_percentiles_are_those_of_the_statistics_module(values: list[float]) -> None:
    ordered = sorted(values)
    expected = statistics.quantiles(ordered, n=100, method="inclusive")
    found = [percentile(ordered, percent) for percent in range(1, 100)]
    assert found == pytest.approx(expected, abs=1e-6)
    assert (percentile(ordered, 0), percentile(ordered, 100)) == (ordered[0], ordered[-1])


def test_a_spread_of_nothing_is_zero() -> None:
    assert Spread.of([], (99.0,)) == Spread(0.0, 0.0, 0.0, ((99.0, 0.0),))
    assert Spread.of([2.0], (99.0,)) == Spread(2.0, 2.0, 0.0, ((99.0, 2.0),))


def load(*outcomes: Outcome, planned: int | None = None) -> Load:
    """A run of two seconds."""
    return Load(outcomes, 2.0, len(outcomes) if planned is None else planned)


def test_sums_and_rates_are_of_the_requests_that_succeeded() -> None:
    found = summarise(
        load(outcome(0.5, 1.0), outcome(0.3, 0.4, 0.5), failed("HTTP 429"), planned=6)
    )
    assert (found.num_ok, found.num_failed, found.num_unsent) == (2, 1, 3)
    assert (found.input_tokens, found.output_tokens) == (200, 5)
    assert (found.cached_tokens, found.computed_tokens, found.hit_rate) == (80, 120, 0.4)
    assert found.per_s(found.output_tokens) == 2.5
    assert found.spreads[Metric.TTFT].median == pytest.approx(400)
    assert found.spreads[Metric.ITL].mean == pytest.approx((500 + 100 + 100) / 3)
    assert found.spreads[Metric.E2EL].mean == pytest.approx((1100 + 600) / 2)


def test_errors_are_counted_by_kind_with_an_example() -> None:
    found = summarise(
        load(failed("HTTP 500", "x"), failed("HTTP 429", "slow"), failed("HTTP 429", "down"))
    )
    assert found.errors == (ErrorCount("HTTP 429", 2, "slow"), ErrorCount("HTTP 500", 1, "x"))


def test_the_servers_own_count_stands_in_for_hits_that_answers_do_not_tell() -> None:
    counted = ServerCounters(preemptions=3, queried_tokens=100, hit_tokens=25)
    untold = load(outcome(0.5, cached=None))
    assert summarise(untold).hit_rate is None
    assert summarise(untold, counted=counted).hit_rate == 0.25
    assert summarise(load(outcome(0.5)), counted=counted).cached_tokens == 40
    assert summarise(untold, counted=ServerCounters(3, 0, 0)).cached_tokens is None
    assert summarise(untold, counted=counted).preemptions == 3


def test_answers_that_tell_only_some_hits_had_none_elsewhere() -> None:
    found = summarise(load(outcome(0.5, cached=None), outcome(0.5, cached=60)))
    assert (found.cached_tokens, found.hit_rate) == (60, 0.3)


# Goodput


def test_a_good_request_keeps_every_limit() -> None:
    limits = parse_limits(["ttft:500", "tpot:250", "e2el:1100"])
    assert is_good(outcome(0.5, 0.7, 1.0), limits)
    assert not is_good(outcome(0.51, 0.7, 0.9), limits)
    assert not is_good(outcome(0.5, 0.9), limits)
    assert not is_good(outcome(0.4, 0.7, 1.01), limits)
    assert not is_good(failed("HTTP 500"), {})
    assert summarise(load(outcome(0.5), outcome(2.0)), limits_ms=limits).num_good == 1


@pytest.mark.parametrize("word", ["ttft", "ttft:", "ttft:x", "ttft:0", "itl:5", "ttft:nan", ":5"])
def test_a_limit_that_is_not_understood_is_named(word: str) -> None:
    with pytest.raises(ConfigError, match="ttft:500"):
        parse_limits([word])


# What is shown


def test_the_table_has_the_lines_that_scripts_look_for() -> None:
    found = summarise(
        load(outcome(0.5, 1.0), failed("HTTP 429", "busy")),
        percents=(50.0, 99.9),
        limits_ms={"ttft": 600.0},
        counted=ServerCounters(2, 0, 0),
    )
    lines = dict(
        line.rsplit(maxsplit=1)
        for line in format_table(found, title="T", facts=[("Model:", "m")]).splitlines()
        if ":  " in line
    )
    cells = {name.strip(): value for name, value in lines.items()}
    assert cells["Model:"] == "m"
    assert cells["Successful requests:"] == "1"
    assert cells["Failed requests:"] == "1"
    assert cells["Request goodput (req/s):"] == "0.50"
    assert cells["Output token throughput (tok/s):"] == "1.00"
    assert cells["Total token throughput (tok/s):"] == "51.00"
    assert cells["Mean TTFT (ms):"] == "500.00"
    assert cells["P99.9 E2EL (ms):"] == "1100.00"
    assert cells["Hit rate (%):"] == "40.00"
    assert cells["Computed prompt tokens:"] == "60"
    assert cells["Preemptions:"] == "2"
    assert cells["HTTP 429:"] == "1"


def test_the_table_says_what_the_server_does_not_tell() -> None:
    text = format_table(summarise(load(outcome(0.5, cached=None))), title="T", metrics=())
    assert text.count("not told") == 4
    assert "TTFT" not in text


def test_the_file_has_the_names_of_other_clients() -> None:
    outcomes = (outcome(0.5, 1.0), failed("HTTP 429", "busy"))
    found = result_json(summarise(load(*outcomes)), {"seed": 5})
    assert (found["seed"], found["completed"], found["request_throughput"]) == (5, 1, 0.5)
    assert (found["mean_ttft_ms"], found["p99_ttft_ms"]) == (500, 500)
    assert found["total_token_throughput"] == 51
    assert found["error_kinds"] == {"HTTP 429": 1}
    details = details_json(outcomes)
    assert details["itls"] == [[0.5], []]
    assert details["errors"] == ["", "HTTP 429: busy"]


# What servers say


METRICS = """\
# HELP radixserve:num_preemptions_total Times a running request gave way
radixserve:num_preemptions_total{model_name="m"} 3.0
radixserve:num_preemptions_created{model_name="m"} 1.7e+09
radixserve:prefix_cache_queries_total{model_name="m"} 200.0
radixserve:prefix_cache_hits_total{model_name="m"} 50.0
vllm:num_preemptions_total{model_name="m"} 99.0
"""


def test_counters_are_read_by_our_names_or_vllms() -> None:
    assert parse_counters(METRICS) == ServerCounters(3, 200, 50)
    theirs = METRICS.replace("radixserve:num", "other:num")
    assert parse_counters(theirs) == ServerCounters(99, 0, 0)
    assert parse_counters("up 1\n") is None


def test_counters_of_several_engines_are_added() -> None:
    text = 'vllm:num_preemptions_total{engine="0"} 1\nvllm:num_preemptions_total{engine="1"} 1e1\n'
    assert parse_counters(text) == ServerCounters(11, 0, 0)


def test_lines_of_a_stream() -> None:
    whole = parse_line(
        b'data: {"choices": [{"text": "a", "token_ids": [4]}], "usage": {"prompt_tokens": 3, '
        b'"completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 2}}}\n'
    )
    assert whole is not None
    assert (whole.text, whole.token_ids, whole.counts) == ("a", (4,), TokenCounts(3, 2, 1))
    chat = parse_line(b'data: {"choices": [{"delta": {"reasoning_content": "h", "content": "i"}}]}')
    assert chat is not None
    assert (chat.text, chat.counts) == ("hi", None)
    failure = parse_line(b'data: {"error": {"message": "gone"}}')
    assert failure is not None
    assert failure.failure is not None
    last = parse_line(b"data: [DONE]\n")
    assert last is not None
    assert last.is_last
    assert parse_line(b": a comment\n") is None
    assert parse_line(b"\n") is None
    with pytest.raises(ValueError, match="no object"):
        parse_line(b"data: [1]\n")
    with pytest.raises(ValueError, match="unexpected end"):
        parse_line(b"data: {\n")
