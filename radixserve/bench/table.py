"""A summary as the table that users of other load clients know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve.bench.summary import TITLES, Metric

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from radixserve.bench.summary import Summary

WIDTH = 56
_LABEL_WIDTH = 44
_SHOWN_LEN = 200


def format_table(
    summary: Summary,
    *,
    title: str,
    facts: Sequence[tuple[str, str]] = (),
    metrics: Iterable[Metric] = Metric,
) -> str:
    """Return the table.

    Args:
        facts: (name, value) of how the run was made, shown first.
        metrics: Latencies that are shown.
    """
    lines = [f" {title} ".center(WIDTH, "=")]
    lines += [_line(name, value) for name, value in (*facts, *_counts(summary))]
    for metric in metrics:
        lines += [TITLES[metric].center(WIDTH, "-"), *_latencies(summary, metric)]
    lines += ["Prefix cache".center(WIDTH, "-"), *_cache(summary)]
    if summary.errors:
        lines += ["Errors".center(WIDTH, "-"), *_errors(summary)]
    return "\n".join([*lines, "=" * WIDTH])


def percent_name(percent: float) -> str:
    """Return `99` or `99.9`: how a percentile is called."""
    return f"{percent:g}"


def _counts(summary: Summary) -> Iterator[tuple[str, str]]:
    yield "Successful requests:", str(summary.num_ok)
    yield "Failed requests:", str(summary.num_failed)
    if summary.num_unsent:
        yield "Not sent, after a failed turn:", str(summary.num_unsent)
    yield "Benchmark duration (s):", f"{summary.duration_s:.2f}"
    yield "Total input tokens:", str(summary.input_tokens)
    yield "Total generated tokens:", str(summary.output_tokens)
    yield "Request throughput (req/s):", f"{summary.per_s(summary.num_ok):.2f}"
    if summary.num_good is not None:
        yield "Request goodput (req/s):", f"{summary.per_s(summary.num_good):.2f}"
    yield "Output token throughput (tok/s):", f"{summary.per_s(summary.output_tokens):.2f}"
    total = summary.input_tokens + summary.output_tokens
    yield "Total token throughput (tok/s):", f"{summary.per_s(total):.2f}"


def _latencies(summary: Summary, metric: Metric) -> Iterator[str]:
    spread, name = summary.spreads[metric], metric.value.upper()
    yield _line(f"Mean {name} (ms):", f"{spread.mean:.2f}")
    yield _line(f"Median {name} (ms):", f"{spread.median:.2f}")
    for percent, value in spread.percentiles:
        yield _line(f"P{percent_name(percent)} {name} (ms):", f"{value:.2f}")


def _cache(summary: Summary) -> Iterator[str]:
    rate = summary.hit_rate
    yield _line("Cached prompt tokens:", _number(summary.cached_tokens))
    yield _line("Computed prompt tokens:", _number(summary.computed_tokens))
    yield _line("Hit rate (%):", "not told" if rate is None else f"{100 * rate:.2f}")
    yield _line("Preemptions:", _number(summary.preemptions))


def _errors(summary: Summary) -> Iterator[str]:
    for error in summary.errors:
        yield _line(f"{error.kind}:", str(error.count))
        yield f"  {error.example[:_SHOWN_LEN]}"


def _number(value: int | None) -> str:
    return "not told" if value is None else str(value)


def _line(label: str, value: str) -> str:
    return f"{label:<{_LABEL_WIDTH}}{value}"
