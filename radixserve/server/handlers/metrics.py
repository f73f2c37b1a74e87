"""``GET /metrics``: the engine's counters in Prometheus' text format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from radixserve.server.state import ENGINE

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


async def get_metrics(request: web.Request) -> web.Response:
    """Return all metrics of this server."""
    registry: CollectorRegistry = request.app[ENGINE].metrics.registry
    return web.Response(
        body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
    )
