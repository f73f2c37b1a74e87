"""A bar on stderr for a batch: how far, how fast, how much is reused, how long it will take."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from radixserve.cli.facts_bar import make_facts_bar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress, TaskID

    from radixserve.batch.record import Record
    from radixserve.batch.report import BatchReport

LINE_EVERY_S = 30.0
"""Between two lines where stderr is no terminal."""


class BatchProgress:
    """Shows a report while it grows.

    Args:
        report: Of the run; the lines have been counted.
        is_quiet: Show nothing.
    """

    def __init__(self, report: BatchReport, *, is_quiet: bool = False) -> None:
        self.report = report
        self._is_quiet = is_quiet
        self._bar: tuple[Progress, TaskID] | None = None
        self.started_at = self._told_at = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the first request could be sent."""
        return time.monotonic() - self.started_at

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the bar inside the `with`, if stderr is a terminal."""
        self.started_at = self._told_at = time.monotonic()
        if self._is_quiet or not sys.stderr.isatty():
            yield
            return
        with make_facts_bar() as bar:
            report = self.report
            done = report.num_done + report.num_failed
            task = bar.add_task("batch", total=report.num_lines, completed=done, facts="")
            self._bar = (bar, task)
            yield
            self._bar = None

    def advance(self, record: Record) -> None:
        """Show that one more line has its record."""
        del record
        if self._bar is not None:
            bar, task = self._bar
            bar.update(task, advance=1, facts=self._facts())
        elif not self._is_quiet and time.monotonic() - self._told_at >= LINE_EVERY_S:
            self._told_at = time.monotonic()
            report = self.report
            done = report.num_done + report.num_failed
            text = f"{done} of {report.num_lines}, {self._facts()}, {self._left()}"
            print(text, file=sys.stderr, flush=True)

    def _facts(self) -> str:
        report = self.report
        rate = report.tokens.output / max(self.seconds, 1e-9)
        failed = f"{report.num_failed} failed, " if report.num_failed else ""
        return f"{failed}{rate:,.0f} tok/s, {report.tokens.hit_rate:.0%} cached"

    def _left(self) -> str:
        report = self.report
        seconds = report.num_left * self.seconds / max(report.num_run, 1)
        return f"about {seconds:,.0f} s left"
