"""The application: routes, middlewares and what the handlers share."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web

from radixserve.server.auth import require_api_key
from radixserve.server.errors import error_middleware
from radixserve.server.handlers.chat import post_chat
from radixserve.server.handlers.completions import post_completions
from radixserve.server.handlers.health import get_health, get_ready
from radixserve.server.handlers.metrics import get_metrics
from radixserve.server.handlers.models import get_model, get_models
from radixserve.server.request_id import add_request_id
from radixserve.server.state import ENGINE, HTTP_CONFIG, TURNS

if TYPE_CHECKING:
    from radixserve.config import HttpConfig
    from radixserve.engine.async_engine import AsyncEngine

PREPARED_PER_ROUND = 4
"""About two milliseconds of the event loop; see `generation.read_json`."""


def build_app(engine: AsyncEngine, config: HttpConfig) -> web.Application:
    """Return the application that serves `engine`.

    It neither starts nor stops the engine: see `run.serve`.
    """
    app = web.Application(
        client_max_size=config.max_body_bytes,
        middlewares=[error_middleware, require_api_key(config.api_key)],
    )
    app[ENGINE] = engine
    app[HTTP_CONFIG] = config
    app[TURNS] = asyncio.Semaphore(PREPARED_PER_ROUND)
    app.on_response_prepare.append(add_request_id)
    app.router.add_get("/health", get_health)
    app.router.add_get("/ready", get_ready)
    app.router.add_get("/metrics", get_metrics)
    app.router.add_get("/v1/models", get_models)
    app.router.add_get("/v1/models/{model:.+}", get_model)
    app.router.add_post("/v1/completions", post_completions)
    app.router.add_post("/v1/chat/completions", post_chat)
    return app
