"""OpenTelemetry traces: a span for each HTTP call, a child of the caller's if it sent one.

Needs the extra `tracing`; nothing of it is imported before it is asked for. Names of attributes
follow OpenTelemetry's semantic conventions for HTTP servers and for generative AI.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from radixserve.errors import ConfigError
from radixserve.server.observe import route_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiohttp import web
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Span

    from radixserve.server.exchange import Exchange

SYSTEM = "radixserve"
GENERATION_ROUTES = {
    "/v1/completions": "text_completion",
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/generate": "text_completion",
}
"""Route -> the name of its operation in the conventions."""


class OtelTracer:
    """Makes the spans.

    Args:
        processor: Takes the spans that have ended.
        model_name: The served model.
    """

    def __init__(self, processor: SpanProcessor, *, model_name: str) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = TracerProvider(resource=Resource.create({"service.name": SYSTEM}))
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer(SYSTEM)
        self._propagator = TraceContextTextMapPropagator()
        self._model_name = model_name

    @contextmanager
    def span(self, request: web.Request, exchange: Exchange) -> Iterator[None]:
        """Return what a call is made in. The span is told of the call's end, whatever it is."""
        from opentelemetry.trace import SpanKind

        route = route_of(request)
        parent = self._propagator.extract({k.lower(): v for k, v in request.headers.items()})
        with self._tracer.start_as_current_span(
            f"{request.method} {route}",
            context=parent,
            kind=SpanKind.SERVER,
            attributes=self._facts_before(request, exchange, route),
            record_exception=False,  # its text may quote what the caller sent
        ) as span:
            try:
                yield
            finally:
                _tell_end(span, exchange)

    def close(self) -> None:
        """Send what has not been sent. Blocks."""
        self._provider.shutdown()

    def _facts_before(self, request: web.Request, exchange: Exchange, route: str) -> dict[str, str]:
        facts = {
            "http.request.method": request.method,
            "http.route": route,
            "radixserve.request_id": exchange.request_id,
        }
        operation = GENERATION_ROUTES.get(route)
        if operation is not None:
            facts["gen_ai.operation.name"] = operation
            facts["gen_ai.provider.name"] = SYSTEM
            facts["gen_ai.request.model"] = self._model_name
        return facts


def make_tracer(endpoint: str, *, model_name: str) -> OtelTracer:
    """Return a tracer that sends its spans to `endpoint`, in batches, from a thread of its own.

    Raises:
        ConfigError: the extra `tracing` is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigError(
            "otlp_endpoint needs OpenTelemetry: pip install 'radixserve[tracing]'"
        ) from None
    exporter = OTLPSpanExporter(endpoint=endpoint)
    return OtelTracer(BatchSpanProcessor(exporter), model_name=model_name)


def _tell_end(span: Span, exchange: Exchange) -> None:
    usages = exchange.usages
    facts: dict[str, Any] = {}
    if usages:
        facts = {
            "gen_ai.usage.input_tokens": sum(usage.prompt_tokens for usage in usages),
            "gen_ai.usage.output_tokens": sum(usage.completion_tokens for usage in usages),
            "gen_ai.usage.cache_read.input_tokens": sum(usage.cached_tokens for usage in usages),
            "gen_ai.response.finish_reasons": exchange.finish_reasons,
        }
    if exchange.ttft_s is not None:
        facts["gen_ai.server.time_to_first_token"] = exchange.ttft_s
    if exchange.error_code:
        facts["error.type"] = exchange.error_code
    if exchange.caller.name:
        facts["radixserve.key"] = exchange.caller.name
    span.set_attributes(facts)
