"""A row of the core's figures, and how the rows are printed."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.summary import percentile
from radixserve.core.eviction.names import POLICY_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TARGETS_US = {
    "match 8,192 cached tokens": 50.0,
    "evict 64 blocks (turns)": 60.0,
    **{f"evict 64 blocks ({policy})": 60.0 for policy in POLICY_NAMES},
    "schedule + update, 64 decodes": 1000.0,
    "crowd, sweep": 3000.0,
    "crowd, sweep, memory short": 3000.0,
}
"""Operation -> its p50 must be below this, at every size."""


@dataclass(frozen=True)
class Row:
    """One measured operation; times in microseconds."""

    operation: str
    leaves: int | None
    samples: int
    p50: float
    p99: float
    min: float
    target: float | None

    @property
    def verdict(self) -> str:
        """Whether the target is met; empty if there is none."""
        if self.target is None:
            return ""
        return "ok" if self.p50 < self.target else "missed"


def make_row(operation: str, leaves: int | None, times_ns: Sequence[int]) -> Row:
    """Return the quantiles of some samples."""
    return Row(
        operation=operation,
        leaves=leaves,
        samples=len(times_ns),
        p50=percentile(times_ns, 50) / 1000,
        p99=percentile(times_ns, 99) / 1000,
        min=min(times_ns) / 1000,
        target=TARGETS_US.get(operation),
    )


def timed(action: Callable[[], object]) -> int:
    """Return how long one call takes, in nanoseconds."""
    start = time.perf_counter_ns()
    action()
    return time.perf_counter_ns() - start


def progress(message: str) -> None:
    """Tell the person who waits what is going on."""
    print(message, file=sys.stderr, flush=True)


def print_table(rows: Sequence[Row]) -> None:
    """Print what was measured, a line an operation and size."""
    print("microseconds; garbage collector off while the clock runs\n")
    header = f"{'operation':<36}{'leaves':>9}{'p50':>10}{'p99':>10}{'min':>10}{'target':>9}"
    print(header)
    for row in rows:
        leaves = "" if row.leaves is None else f"{row.leaves:,}"
        target = "" if row.target is None else f"< {row.target:.0f}"
        print(
            f"{row.operation:<36}{leaves:>9}{row.p50:>10.1f}{row.p99:>10.1f}{row.min:>10.1f}"
            f"{target:>9}  {row.verdict}".rstrip()
        )


def print_growth(rows: Sequence[Row]) -> None:
    """Print how much slower each operation is in the largest tree than in the smallest."""
    print("\np50 in the largest tree / in the smallest")
    for operation in dict.fromkeys(row.operation for row in rows if row.leaves is not None):
        sizes = [row.p50 for row in rows if row.operation == operation]
        print(f"{operation:<36}{sizes[-1] / sizes[0]:>9.2f}x")
