"""A bar on stderr for a load: how far, how fast, how much is reused, how long it will take."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from radixserve.cli.facts_bar import make_facts_bar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress, TaskID

    from radixserve.bench.target import Outcome

LINE_EVERY_S = 30.0
"""Between two lines where stderr is no terminal."""
REFRESHES_PER_S = 2.0
"""Of the bar: few, as a thread of the process that takes the times draws it."""


class LoadProgress:
    """Counts outcomes as they come.

    Args:
        total: Requests there are to send.
        is_quiet: Show nothing.
    """

    def __init__(self, total: int, *, is_quiet: bool = False) -> None:
        self._total = total
        self._is_quiet = is_quiet
        self._bar: tuple[Progress, TaskID] | None = None
        self._num_done = self._num_failed = 0
        self._input = self._cached = self._output = 0
        self._started_at = self._told_at = time.monotonic()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the bar inside the `with`, if stderr is a terminal."""
        if self._is_quiet or not sys.stderr.isatty():
            yield
            return
        with make_facts_bar(refreshes_per_s=REFRESHES_PER_S) as bar:
            self._bar = (bar, bar.add_task("bench", total=self._total, facts=""))
            yield
            self._bar = None

    def advance(self, outcome: Outcome) -> None:
        """Count one more request that has ended."""
        if self._num_done == 0:
            self._started_at = time.monotonic() - outcome.latency_s
        self._num_done += 1
        self._num_failed += outcome.failure is not None
        self._input += outcome.prompt_tokens
        self._cached += outcome.counts.cached or 0
        self._output += outcome.output_tokens
        if self._bar is not None:
            bar, task = self._bar
            bar.update(task, advance=1, facts=self._facts())
        elif not self._is_quiet and time.monotonic() - self._told_at >= LINE_EVERY_S:
            self._told_at = time.monotonic()
            print(
                f"{self._num_done} of {self._total}, {self._facts()}", file=sys.stderr, flush=True
            )

    def _facts(self) -> str:
        rate = self._output / max(time.monotonic() - self._started_at, 1e-9)
        failed = f"{self._num_failed} failed, " if self._num_failed else ""
        hit_rate = self._cached / max(self._input, 1)
        return f"{failed}{rate:,.0f} output tok/s, {hit_rate:.0%} cached"
