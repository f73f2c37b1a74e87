"""A report as text: what the trace is, then a line for each run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve.replay.simulation import ServeCounts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from radixserve.replay.report import Report, Run

GIB = 1 << 30
OPTIMUM = "(optimum)"


def format_report(report: Report) -> str:
    """Return the report as lines of text."""
    rows = [_header(report), *_rows(report)]
    return "\n".join([_title(report), "", *align(rows), *_notes(report)])


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _title(report: Report) -> str:
    trace = report.trace
    return (
        f"{trace.name}: {trace.requests:,} requests, {trace.input_tokens:,} prompt tokens\n"
        f"{trace.input_blocks:,} whole blocks of {trace.block_size} tokens, "
        f"{trace.unique_blocks:,} of them distinct: a cache without end hits "
        f"{100 * trace.infinite_hit_rate:.1f} %\n"
        f"mode {report.mode}, order {report.order}"
    )


def _header(report: Report) -> list[str]:
    columns = ["policy", "blocks", "tokens"]
    if report.kv_bytes_per_token is not None:
        columns.append("GiB")
    columns += ["hit rate", "of optimum", "of infinite", "evicted", "replayed in"]
    if report.mode == "serve":
        columns += ["preempted", "wait p50", "p99", "TTFT p50", "p90", "p99", "tokens/s"]
    return columns


def _rows(report: Report) -> Iterator[list[str]]:
    for run in report.runs:
        yield [
            run.policy,
            *_size(report, run.capacity),
            _percent(100 * run.counts.hit_rate),
            _percent(report.percent_of_optimum(run)),
            _percent(report.percent_of_infinite(run)),
            f"{run.counts.evicted_blocks:,}",
            f"{run.seconds:.1f} s",
            *_serving(run),
        ]
    for optimum in report.optima:
        yield [
            OPTIMUM,
            *_size(report, optimum.capacity),
            _percent(100 * report.trace.share(optimum.hits)),
            _percent(100.0),
            _percent(100 * optimum.hits / report.trace.infinite_hits)
            if report.trace.infinite_hits
            else "",
            f"{optimum.evicted_blocks:,}",
            "",
            *[""] * (len(_header(report)) - len(_size(report, 0)) - 6),
        ]


def _size(report: Report, capacity: int) -> list[str]:
    tokens = capacity * report.trace.block_size
    cells = [f"{capacity:,}", f"{tokens:,}"]
    if report.kv_bytes_per_token is not None:
        cells.append(f"{tokens * report.kv_bytes_per_token / GIB:,.1f}")
    return cells


def _percent(value: float) -> str:
    return f"{value:.1f} %"


def _serving(run: Run) -> list[str]:
    counts = run.counts
    if not isinstance(counts, ServeCounts):
        return []
    times = (counts.wait.p50, counts.wait.p99, counts.ttft.p50, counts.ttft.p90, counts.ttft.p99)
    per_s = (counts.prompt_tokens + counts.output_tokens) / counts.makespan_s
    return [f"{counts.preemptions:,}", *(f"{each:.2f} s" for each in times), f"{per_s:,.0f}"]


def _notes(report: Report) -> list[str]:
    refused = {run.counts.refused for run in report.runs if isinstance(run.counts, ServeCounts)}
    notes = []
    if any(refused):
        notes.append(f"up to {max(refused):,} requests do not fit in the cache and were refused")
    if report.mode == "serve":
        notes.append(
            "hit rate in tokens, partly filled blocks included; the optimum in whole blocks and "
            "in the order of arrival: the scheduler can do better than it"
        )
    return ["", *notes] if notes else []
