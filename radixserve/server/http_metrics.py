"""Counts HTTP calls by route and status, in a registry of its own.

On the event loop only, so without the locks of prometheus_client's own counters.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from radixserve.engine.histogram import Histogram
from radixserve.server.observe import route_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiohttp import web
    from prometheus_client.core import Metric

    from radixserve.server.exchange import Exchange

SECONDS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""Methods are made up as easily as paths, so only these count by name."""


class HttpMetrics(Collector):
    """What the HTTP server itself counts."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._calls: Counter[tuple[str, str, str]] = Counter()
        self._seconds: dict[str, Histogram] = {}
        self.registry.register(self)

    def ended(self, request: web.Request, exchange: Exchange, *, status: int, e2e_s: float) -> None:
        """Count one call."""
        route = route_of(request)
        method = request.method if request.method in METHODS else "other"
        self._calls[method, route, str(status)] += 1
        seconds = self._seconds.get(route)
        if seconds is None:
            seconds = self._seconds[route] = Histogram(SECONDS)
        seconds.observe(e2e_s)

    def collect(self) -> Iterator[Metric]:
        """Yield the counters and the histograms."""
        calls = CounterMetricFamily(
            "radixserve:http_requests",
            "HTTP calls that have ended",
            labels=("method", "route", "status"),
        )
        for labels, count in self._calls.items():
            calls.add_metric(labels, count)
        yield calls
        seconds = HistogramMetricFamily(
            "radixserve:http_request_duration_seconds",
            "From the headers of a call to the end of its answer",
            labels=("route",),
        )
        for route, histogram in self._seconds.items():
            histogram.add_to(seconds, (route,))
        yield seconds
