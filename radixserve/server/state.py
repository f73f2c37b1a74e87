"""What the handlers share, under typed keys of the application."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

if TYPE_CHECKING:
    import asyncio

    from radixserve.config import HttpConfig
    from radixserve.engine.async_engine import AsyncEngine
    from radixserve.server.batch_desk import BatchDesk
    from radixserve.server.forks import Forks
    from radixserve.server.http_metrics import HttpMetrics

ENGINE: web.AppKey[AsyncEngine] = web.AppKey("engine")
BATCH_DESK: web.AppKey[BatchDesk] = web.AppKey("batch_desk")
"""Only where the settings name a data folder."""
FORKS: web.AppKey[Forks] = web.AppKey("forks")
PREPARED_PER_ROUND = 4
"""Requests that are prepared in one round of the event loop: about two milliseconds of it; see
`generation.read_json`."""

TURNS: web.AppKey[asyncio.Semaphore] = web.AppKey("turns")
"""Bounds the requests that are prepared in one round of the event loop."""
HTTP_CONFIG: web.AppKey[HttpConfig] = web.AppKey("http_config")
HTTP_METRICS: web.AppKey[HttpMetrics] = web.AppKey("http_metrics")
