"""A few numbers that stand for many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Distribution:
    """Mean, quantiles by nearest rank, and maximum."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Distribution:
        """Return the distribution of some values, all zero if there are none."""
        if not values:
            return cls(0.0, 0.0, 0.0, 0.0, 0.0)
        ordered = sorted(values)
        p50, p90, p99 = (ordered[_rank(len(ordered), percent)] for percent in (50, 90, 99))
        return cls(sum(ordered) / len(ordered), p50, p90, p99, ordered[-1])


def _rank(count: int, percent: int) -> int:
    return max(0, -(-count * percent // 100) - 1)
