"""A progress bar that also shows some facts: rates, failures, what was cached."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


def make_facts_bar(*, refreshes_per_s: float = 10.0) -> Progress:
    """Return a bar on stderr whose tasks have a field `facts`.

    Args:
        refreshes_per_s: How often a thread of this process draws it.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[facts]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        refresh_per_second=refreshes_per_s,
    )
