"""Counts HTTP calls by route and status, in a registry of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram

from radixserve.server.observe import route_of

if TYPE_CHECKING:
    from aiohttp import web

    from radixserve.server.exchange import Exchange

SECONDS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class HttpMetrics:
    """What the HTTP server itself counts."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._calls = Counter(
            "radixserve:http_requests",
            "HTTP calls that have ended",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "radixserve:http_request_duration_seconds",
            "From the headers of a call to the end of its answer",
            ("route",),
            buckets=SECONDS,
            registry=self.registry,
        )

    def ended(self, request: web.Request, exchange: Exchange, *, status: int, e2e_s: float) -> None:
        """Count one call. Methods are made up as easily as paths, so only known ones count."""
        route = route_of(request)
        method = request.method if request.method in METHODS else "other"
        self._calls.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(e2e_s)
