"""Results as pictures: how latencies are distributed, how near kernels are to their floors."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from radixserve.bench.summary import TITLES, Metric, values_of
from radixserve.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from radixserve.bench.target import Outcome

SIZE_INCHES = (10.0, 7.0)
DOTS_PER_INCH = 150


def require_matplotlib() -> None:
    """Raise unless a picture can be drawn; to be asked before the work is done.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib: pip install 'radixserve[plot]'")


def draw_latencies(outcomes: Sequence[Outcome], title: str, path: Path) -> None:
    """Write a PNG with the cumulative distribution of each latency.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    fine = [outcome for outcome in outcomes if outcome.failure is None]
    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    figure.suptitle(title)
    for place, metric in enumerate(Metric, start=1):
        _draw(figure.add_subplot(2, 2, place), metric, fine)
    _save(figure, path)


def draw_floors(names: Sequence[str], shares: Sequence[float], path: Path) -> None:
    """Write a PNG with a bar for each kernel: the share of its floor that it reaches.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(SIZE_INCHES[0], 1.5 + 0.25 * len(names)), layout="constrained")
    axes = figure.add_subplot()
    axes.barh(list(names), [100.0 * share for share in shares])
    axes.invert_yaxis()
    axes.set_xlabel("% of the nearer limit: memory or multiply-adds")
    axes.grid(visible=True, axis="x", alpha=0.3)
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    try:
        figure.savefig(path, dpi=DOTS_PER_INCH, format="png")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def _draw(axes: Axes, metric: Metric, fine: Sequence[Outcome]) -> None:
    values = [1e3 * value for value in values_of(metric, fine)]
    if values:
        axes.ecdf(values)
    axes.set_title(TITLES[metric])
    axes.set_xlabel("ms")
    axes.set_ylabel("share of requests" if metric is not Metric.ITL else "share of gaps")
    axes.set_xlim(left=0.0)
    axes.grid(visible=True, alpha=0.3)
