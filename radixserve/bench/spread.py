"""Many values as a few: mean, median, deviation, percentiles."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, slots=True)
class Spread:
    """Of some values, all zero if there are none."""

    mean: float
    median: float
    std: float
    """Standard deviation of the values themselves, not of a sample's population."""
    percentiles: tuple[tuple[float, float], ...]
    """(percent, value)"""

    @classmethod
    def of(cls, values: Iterable[float], percents: Sequence[float]) -> Spread:
        """Return the spread of the values."""
        ordered = sorted(values)
        if not ordered:
            return cls(0.0, 0.0, 0.0, tuple((percent, 0.0) for percent in percents))
        return cls(
            statistics.fmean(ordered),
            statistics.median(ordered),
            statistics.pstdev(ordered),
            tuple((percent, percentile(ordered, percent)) for percent in percents),
        )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the value below which `percent` % of ascending values lie, between two of them if
    need be, in proportion.
    """
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    low, high = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
    return low + (high - low) * (place - below)
