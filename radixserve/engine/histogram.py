"""A histogram that one thread fills and reads: no lock, no labels, one bisection a value."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from prometheus_client.core import HistogramMetricFamily

INFINITY = "+Inf"


class Histogram:
    """How many values fell into each bucket, and their sum.

    Args:
        bounds: Upper bounds of the buckets, ascending; a value on a bound is in its bucket.
    """

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Count a value that came `count` times. Complexity: O(log bounds)."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        """Show this in a scrape. Mutates: the family."""
        bounds = [*(str(float(bound)) for bound in self._bounds), INFINITY]
        buckets = list(zip(bounds, accumulate(self._counts), strict=True))
        family.add_metric(labels, buckets, self._sum)
