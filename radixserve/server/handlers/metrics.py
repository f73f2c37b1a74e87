"""``GET /metrics``: the counters of engine and server in Prometheus' text format."""

from __future__ import annotations

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from radixserve.server.metric_names import Exposition
from radixserve.server.state import ENGINE, HTTP_CONFIG, HTTP_METRICS


async def get_metrics(request: web.Request) -> web.Response:
    """Return all metrics of this server."""
    exposition = Exposition(
        [request.app[ENGINE].metrics.registry, request.app[HTTP_METRICS].registry],
        has_aliases=request.app[HTTP_CONFIG].observe.metrics_aliases == "vllm",
    )
    return web.Response(
        body=generate_latest(exposition), headers={"Content-Type": CONTENT_TYPE_LATEST}
    )
