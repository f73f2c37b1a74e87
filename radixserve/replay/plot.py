"""A report as a picture: hit rate against capacity, a line for each policy."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from radixserve.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from radixserve.replay.report import Report

SIZE_INCHES = (8.0, 5.0)
DOTS_PER_INCH = 150
MARKERS = "osD^vP*X"
GIB = 1 << 30
MOST_LABELS = 8
"""On the axis of capacities, so that none is drawn over another."""


def require_matplotlib() -> None:
    """Raise unless a picture can be drawn; to be asked before the work is done.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib: pip install 'radixserve[plot]'")


def draw_report(report: Report, path: Path) -> None:
    """Write a PNG.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    axes = figure.add_subplot()
    _draw_lines(report, axes)
    _label(report, axes)
    try:
        figure.savefig(path, dpi=DOTS_PER_INCH, format="png")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def _draw_lines(report: Report, axes: Axes) -> None:
    capacities = [each.capacity for each in report.optima]
    infinite = 100 * report.trace.infinite_hit_rate
    axes.axhline(infinite, color="grey", linestyle=":", label="cache without end")
    optimal = [100 * report.trace.share(each.hits) for each in report.optima]
    axes.plot(capacities, optimal, color="black", linestyle="--", marker=".", label="optimum")
    for i, policy in enumerate(report.policies):
        runs = [run for run in report.runs if run.policy == policy]
        axes.plot(
            [run.capacity for run in runs],
            [100 * run.counts.hit_rate for run in runs],
            marker=MARKERS[i % len(MARKERS)],
            label=policy,
        )


def _label(report: Report, axes: Axes) -> None:
    trace = report.trace
    what = "prompt tokens" if report.mode == "serve" else "input blocks"
    axes.set_title(f"{trace.name}\nmode {report.mode}, order {report.order}")
    axes.set_xscale("log")
    below = "tokens" if report.kv_bytes_per_token is None else "GiB of KV"
    axes.set_xlabel(f"cache capacity (blocks of {trace.block_size} tokens; below: {below})")
    axes.set_ylabel(f"hit rate (% of {what})")
    axes.set_ylim(bottom=0.0)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(loc="best")
    capacities = sorted({each.capacity for each in report.optima})
    labelled = capacities[:: -(-len(capacities) // MOST_LABELS)]
    axes.set_xticks(labelled, [_size(report, each) for each in labelled])
    axes.minorticks_off()


def _size(report: Report, capacity: int) -> str:
    tokens = capacity * report.trace.block_size
    if report.kv_bytes_per_token is None:
        return f"{capacity:,}\n{tokens:,}"
    return f"{capacity:,}\n{tokens * report.kv_bytes_per_token / GIB:,.1f}"
