"""The figures of all runs as a table, and as a picture."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from benchmarks.programs.measure import Measured

TARGET_OF_OPTIMUM = 0.96
HEAD = (
    f"{'workload':11}{'mode':10}{'wall s':>8}{'x':>6}{'prog/s':>8}{'out tok/s':>11}"
    f"{'ttft med/p99 s':>16}{'call med/p99 s':>16}{'hit rate':>10}{'of optimum':>12}"
)


def print_rows(rounds: Sequence[Measured], same: Mapping[str, str]) -> None:
    """Print a workload's rows: of each mode the round with the median wall time.

    Args:
        rounds: All runs of one workload.
        same: By mode, how many results are those of the first mode.
    """
    picked = median_rounds(rounds)
    base = picked[0].wall_s
    for row in picked:
        share = "" if row.of_optimum is None else f"{row.of_optimum:.1%}"
        print(
            f"{row.workload:11}{row.mode:10}{row.wall_s:8.1f}{row.wall_s / base:6.2f}"
            f"{row.programs / row.wall_s:8.2f}{row.output_tokens / row.wall_s:11.1f}"
            f"{row.ttft_median_s:9.2f} /{row.ttft_p99_s:5.1f}"
            f"{row.call_median_s:9.2f} /{row.call_p99_s:5.1f}"
            f"{row.hit_rate:10.1%}{share:>12}  {same[row.mode]}"
        )
    first = picked[0]
    if first.of_optimum is not None:
        verdict = "met" if first.of_optimum >= TARGET_OF_OPTIMUM else "MISSED"
        print(f"{'':11}{first.of_optimum:.1%} of the optimum (target 96 %): {verdict}\n")


def median_rounds(rounds: Sequence[Measured]) -> list[Measured]:
    """Return of each mode the round whose wall time is the median (the lower of two)."""
    modes = dict.fromkeys(row.mode for row in rounds)
    return [_median([row for row in rounds if row.mode == mode]) for mode in modes]


def _median(rows: Sequence[Measured]) -> Measured:
    ordered = sorted(rows, key=lambda row: row.wall_s)
    return ordered[(len(ordered) - 1) // 2]


def total_speedup(rounds: Sequence[Measured], mode: str) -> float:
    """Return the median, over workloads, of a mode's wall time in units of the first mode's."""
    ratios = []
    for name in dict.fromkeys(row.workload for row in rounds):
        picked = median_rounds([row for row in rounds if row.workload == name])
        ratios += [row.wall_s / picked[0].wall_s for row in picked if row.mode == mode]
    return median(ratios)


def plot(rounds: Sequence[Measured], path: Path) -> None:
    """Write a picture: throughput of each mode beside that of the first, workload by workload."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(row.workload for row in rounds))
    modes = list(dict.fromkeys(row.mode for row in rounds))
    figure, axes = pyplot.subplots(figsize=(1.5 + 1.2 * len(names), 4), layout="constrained")
    width = 0.8 / len(modes)
    for place, mode in enumerate(modes):
        heights = []
        for name in names:
            picked = median_rounds([row for row in rounds if row.workload == name])
            wall_s = next(row.wall_s for row in picked if row.mode == mode)
            heights.append(picked[0].wall_s / wall_s)
        at = [index + (place - (len(modes) - 1) / 2) * width for index in range(len(names))]
        axes.bar(at, heights, width, label=mode)
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel(f"throughput, {modes[0]} = 1")
    axes.legend(ncols=len(modes), fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1))
    figure.savefig(path, dpi=120)
