"""The application: routes, middlewares and what the handlers share."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web

from radixserve.server.access_log import AccessLog
from radixserve.server.auth import require_api_key
from radixserve.server.batch_desk import BatchDesk
from radixserve.server.cors import add_cors_headers, answer_preflights
from radixserve.server.errors import error_middleware
from radixserve.server.forks import Forks
from radixserve.server.generating_routes import GENERATING_ROUTES
from radixserve.server.handlers.batches import (
    get_batch,
    get_batches,
    post_batches,
    post_cancel,
)
from radixserve.server.handlers.cache import (
    get_cache,
    get_cache_tree,
    post_explain,
    post_flush,
    post_pin,
    post_unpin,
    post_warm,
)
from radixserve.server.handlers.files import (
    delete_file,
    get_file,
    get_file_content,
    get_files,
    post_files,
)
from radixserve.server.handlers.forget import post_forget
from radixserve.server.handlers.generate import post_generate
from radixserve.server.handlers.health import get_health, get_ready
from radixserve.server.handlers.messages import post_count_tokens
from radixserve.server.handlers.metrics import get_metrics
from radixserve.server.handlers.models import get_model, get_models
from radixserve.server.handlers.openapi import get_openapi
from radixserve.server.handlers.requests import get_requests
from radixserve.server.handlers.score import post_score
from radixserve.server.handlers.tokenize import get_tokenizer, post_detokenize, post_tokenize
from radixserve.server.handlers.version import get_version
from radixserve.server.http_metrics import HttpMetrics
from radixserve.server.keys import load_keys
from radixserve.server.observe import observe
from radixserve.server.request_id import add_request_id
from radixserve.server.state import (
    BATCH_DESK,
    ENGINE,
    FORKS,
    HTTP_CONFIG,
    HTTP_METRICS,
    PREPARED_PER_ROUND,
    TURNS,
)

if TYPE_CHECKING:
    from aiohttp.typedefs import Middleware

    from radixserve.config import HttpConfig
    from radixserve.engine.async_engine import AsyncEngine
    from radixserve.server.observe import Observer, Tracer


def build_app(
    engine: AsyncEngine, config: HttpConfig, *, tracer: Tracer | None = None
) -> web.Application:
    """Return the application that serves `engine`.

    It neither starts nor stops the engine: see `run.serve`.

    Args:
        tracer: Makes a trace of each call.
    Raises:
        ConfigError: the keys cannot be used.
    """
    http_metrics = HttpMetrics()
    app = web.Application(
        client_max_size=config.max_body_bytes,
        middlewares=_middlewares(config, http_metrics, tracer),
    )
    app[HTTP_METRICS] = http_metrics
    app[ENGINE] = engine
    app[HTTP_CONFIG] = config
    forks = app[FORKS] = Forks(engine)
    app.on_cleanup.append(forks.close)
    if config.data_dir is not None:
        desk = app[BATCH_DESK] = BatchDesk(engine, config)
        app.cleanup_ctx.append(desk.opened)
    app[TURNS] = asyncio.Semaphore(PREPARED_PER_ROUND)
    app.on_response_prepare.append(add_request_id)
    if config.cors_origins:
        app.on_response_prepare.append(add_cors_headers(config.cors_origins))
    app.router.add_get("/health", get_health)
    app.router.add_get("/ready", get_ready)
    app.router.add_get("/metrics", get_metrics)
    app.router.add_get("/version", get_version)
    app.router.add_get("/openapi.json", get_openapi)
    app.router.add_get("/tokenizer", get_tokenizer)
    for root in ("", "/v1"):
        app.router.add_post(f"{root}/tokenize", post_tokenize)
        app.router.add_post(f"{root}/detokenize", post_detokenize)
    app.router.add_get("/v1/models", get_models)
    app.router.add_get("/v1/models/{model:.+}", get_model)
    for path, handler in GENERATING_ROUTES.items():
        app.router.add_post(path, handler)
    app.router.add_post("/v1/messages/count_tokens", post_count_tokens)
    app.router.add_post("/v1/score", post_score)
    app.router.add_post("/generate", post_generate)
    app.router.add_post("/generate/forget", post_forget)
    app.router.add_get("/cache", get_cache)
    app.router.add_get("/cache/tree", get_cache_tree)
    app.router.add_post("/cache/explain", post_explain)
    app.router.add_post("/cache/pin", post_pin)
    app.router.add_post("/cache/unpin", post_unpin)
    app.router.add_post("/cache/warm", post_warm)
    app.router.add_post("/cache/flush", post_flush)
    app.router.add_get("/requests", get_requests)
    app.router.add_post("/v1/files", post_files)
    app.router.add_get("/v1/files", get_files)
    app.router.add_get("/v1/files/{file_id}", get_file)
    app.router.add_get("/v1/files/{file_id}/content", get_file_content)
    app.router.add_delete("/v1/files/{file_id}", delete_file)
    app.router.add_post("/v1/batches", post_batches)
    app.router.add_get("/v1/batches", get_batches)
    app.router.add_get("/v1/batches/{batch_id}", get_batch)
    app.router.add_post("/v1/batches/{batch_id}/cancel", post_cancel)
    return app


def _middlewares(
    config: HttpConfig, http_metrics: HttpMetrics, tracer: Tracer | None
) -> list[Middleware]:
    """Return them from the outside in: what is refused is logged, counted and in the envelope."""
    observers: list[Observer] = [http_metrics]
    if config.observe.access_log != "off":
        observers.append(AccessLog(config.observe.access_log))
    keys = load_keys(config.keys)
    return [
        observe(observers, tracer),
        error_middleware,
        *([answer_preflights(config.cors_origins)] if config.cors_origins else []),
        require_api_key(keys, host=config.host, share_cache=config.keys.share_cache),
    ]
