"""`Limits`: what a machine can do at best. `Measured`: what a kernel took, beside them."""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from radixserve.kernels import (
    measure_peak_flops,
    measure_read_bandwidth,
    num_threads,
    variant,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BEYOND_CACHES = 160 << 20
"""Bytes that one pass over a case's copies reads, at least, so that no cache holds them."""

MOST_COPIES = 256
"""Of a case that is so small that even more would not fill the caches."""


def num_copies(num_bytes: int) -> int:
    """Return how many copies of something are needed so that no cache holds them all."""
    return max(1, min(MOST_COPIES, -(-BEYOND_CACHES // num_bytes)))


@dataclass(frozen=True, slots=True)
class Limits:
    """What the machine can do, with the threads in use."""

    bytes_per_s: float
    flops: float
    """Operations a second; a multiply-add is two."""

    @staticmethod
    def measure() -> Limits:
        """Measure now."""
        return Limits(measure_read_bandwidth(), measure_peak_flops())

    def __str__(self) -> str:
        return (
            f"kernels {variant()}, {num_threads()} threads; "
            f"memory {self.bytes_per_s / 1e9:.1f} GB/s, "
            f"multiply-adds {self.flops / 1e9:.0f} GFLOP/s"
        )

    def floor_s(self, num_bytes: float, num_flops: float) -> float:
        """Return the seconds that nothing can beat."""
        return max(num_bytes / self.bytes_per_s, num_flops / self.flops)


@dataclass(frozen=True, slots=True)
class Measured:
    """The median time of one kernel on one case."""

    name: str
    dtype: str
    """Of the weights, or of the KV."""
    rows: int
    context: int
    """Tokens that each request's rows see; 0 where there are no requests."""
    seconds: float
    num_bytes: float
    """What must be read once."""
    num_flops: float
    ratios: dict[str, float] = field(default_factory=dict)
    """Name of another way to do it -> how many times as long that took, in turn with this."""

    def shares(self, limits: Limits) -> tuple[float, float, float]:
        """Return which share it reaches of the memory's speed, of the multiply-add peak, and of
        the nearer one of the two."""
        floor = limits.floor_s(self.num_bytes, self.num_flops)
        return (
            self.num_bytes / self.seconds / limits.bytes_per_s,
            self.num_flops / self.seconds / limits.flops,
            floor / self.seconds,
        )

    def as_json(self, limits: Limits) -> dict[str, Any]:
        """Return everything that is known of it."""
        names = ("of_memory", "of_peak", "of_floor")
        return asdict(self) | dict(zip(names, self.shares(limits), strict=True))


def seconds_of(work: Callable[[], object]) -> float:
    """Return how long `work` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def medians_in_turn(runs: Sequence[Callable[[], float]], *, repeats: int) -> list[float]:
    """Return the median of what each run gives; they take turns, after one round that is not
    counted."""
    for run in runs:
        run()
    rounds = [[run() for run in runs] for _ in range(repeats)]
    return [statistics.median(column) for column in zip(*rounds, strict=True)]


HEADER = "kernel     kept in    rows context         us    GB/s of mem  GFLOP/s of fma  floor"


def format_line(measured: Measured, limits: Limits) -> str:
    """Return a line of the table under `HEADER`."""
    memory, peak, floor = measured.shares(limits)
    ratios = "".join(f"  {name} {ratio:.2f}x" for name, ratio in measured.ratios.items())
    return (
        f"{measured.name:10} {measured.dtype:9} {measured.rows:5}"
        f" {measured.context or '-':>7} {measured.seconds * 1e6:10.1f}"
        f" {measured.num_bytes / measured.seconds / 1e9:7.1f} {memory:6.0%}"
        f" {measured.num_flops / measured.seconds / 1e9:8.1f} {peak:6.0%} {floor:6.0%}{ratios}"
    )
