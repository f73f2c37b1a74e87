"""A span for each call, with the conventions' names, below the caller's own span."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from radixserve.config import HttpConfig
from radixserve.server.app import build_app
from radixserve.server.tracing import OtelTracer, make_tracer
from tests.server.conftest import connected

if TYPE_CHECKING:
    from radixserve.engine.async_engine import AsyncEngine

otel = pytest.importorskip("opentelemetry.sdk.trace.export")
memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")

pytestmark = pytest.mark.asyncio(loop_scope="session")

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CALL = {"prompt": "Once upon a time", "max_tokens": 4, "ignore_eos": True}


async def test_a_span_tells_what_a_call_was_and_cost(shared_engine: AsyncEngine) -> None:
    exporter = memory.InMemorySpanExporter()
    tracer = OtelTracer(otel.SimpleSpanProcessor(exporter), model_name="tiny")
    async with connected(build_app(shared_engine, HttpConfig(), tracer=tracer)) as client:
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "call-7"}
        response = await client.post("/v1/completions", json=CALL, headers=headers)
        assert response.status == 200
        await client.post("/v1/completions", json={"prompt": "a secret", "nonsense": 1})
    tracer.close()
    good, bad = exporter.get_finished_spans()

    assert good.name == "POST /v1/completions"
    assert format(good.context.trace_id, "032x") == TRACE
    assert format(good.parent.span_id, "016x") == PARENT
    told = dict(good.attributes)
    assert told.pop("gen_ai.server.time_to_first_token") > 0
    assert told.pop("gen_ai.usage.cache_read.input_tokens") >= 0
    assert told.pop("gen_ai.usage.input_tokens") > 0
    assert told == {
        "http.request.method": "POST",
        "http.route": "/v1/completions",
        "radixserve.request_id": "call-7",
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "radixserve",
        "gen_ai.request.model": "tiny",
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.response.finish_reasons": ("length",),
    }
    assert bad.parent is None
    assert bad.attributes["error.type"] == "unknown_parameter"
    assert "secret" not in bad.to_json()


async def test_spans_reach_a_collector_over_http() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    received: list[bytes] = []

    async def collect(request: web.Request) -> web.Response:
        received.append(await request.read())
        return web.Response()

    sink = web.Application()
    sink.router.add_post("/v1/traces", collect)

    async def hello(request: web.Request) -> web.Response:
        return web.Response()

    from radixserve.server.observe import observe

    async with connected(sink) as collector:
        endpoint = str(collector.make_url("/v1/traces"))
        tracer = make_tracer(endpoint, model_name="tiny")
        app = web.Application(middlewares=[observe([], tracer)])
        app.router.add_get("/hello", hello)
        async with connected(app) as client:
            await client.get("/hello")
        await asyncio.to_thread(tracer.close)
    assert b"GET /hello" in b"".join(received)
