"""`RichProgress`: a bar on a terminal, a line for each step elsewhere; always on stderr."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

_LEAST_BYTES = 1_000_000
"""A total this large counts bytes; steps that count tensors have hundreds."""


class RichProgress:
    """Shows the steps of a download or a conversion. Implements `models.progress.Progress`."""

    def __init__(self) -> None:
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._description = ""
        self._started_at = 0.0

    def start(self, description: str, total: int | None) -> None:
        """Begin a step of `total` units; None where the total is unknown."""
        self._description = description
        self._started_at = time.monotonic()
        if sys.stderr.isatty():
            self._bar = _make_bar(total)
            self._bar.start()
            self._task = self._bar.add_task(description, total=total)

    def advance(self, n: int) -> None:
        """Count `n` more units as done."""
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task, n)

    def finish(self) -> None:
        """End the step that is running."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
            return
        seconds = time.monotonic() - self._started_at
        print(f"{self._description}: {seconds:.1f} s", file=sys.stderr, flush=True)


def _make_bar(total: int | None) -> Bar:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    counts_bytes = total is not None and total >= _LEAST_BYTES
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn() if counts_bytes else MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )
