"""A bar on stderr for many runs: how far, how fast, how much was reused."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress, TaskID

    from radixserve.frontend.report import Report


class MapProgress:
    """Counts items that are done.

    Args:
        title: Shown before the bar.
        total: Items.
        report: Grows meanwhile; rates are made from it.
    """

    def __init__(self, title: str, total: int, report: Report) -> None:
        self._title = title
        self._total = total
        self._report = report
        self._bar: tuple[Progress, TaskID] | None = None
        self._started = time.monotonic()

    @contextmanager
    def shown(self, wanted: bool) -> Iterator[None]:
        """Show the bar while the block lasts, if that is wanted and stderr is a terminal."""
        if not wanted or not sys.stderr.isatty():
            yield
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as Remaining

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rates]}"),
            Remaining(),
        )
        with Progress(*columns, console=Console(stderr=True)) as bar:
            self._bar = (bar, bar.add_task(self._title, total=self._total, rates=""))
            yield
            self._bar = None

    def advance(self) -> None:
        """One more item is done."""
        if self._bar is None:
            return
        bar, task = self._bar
        usage = self._report.usage
        seconds = max(time.monotonic() - self._started, 1e-9)
        rates = f"{usage.output_tokens / seconds:.0f} tok/s, {self._report.hit_rate:.0%} cached"
        bar.update(task, advance=1, rates=rates)
