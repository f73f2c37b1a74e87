"""The outermost middleware: what each HTTP call was, took and cost, told to log, metrics, trace."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from aiohttp import web

from radixserve.server.exchange import Exchange, entered
from radixserve.server.request_id import request_id_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from aiohttp.typedefs import Handler, Middleware

CLIENT_GONE = 499
"""What is noted for a call whose client went away before its answer had begun.

Source: nginx's log.
"""
UNROUTED = "(none)"


class Observer(Protocol):
    """Somebody who is told about every call."""

    def ended(self, request: web.Request, exchange: Exchange, *, status: int, e2e_s: float) -> None:
        """Take note of a call that is over. It must not fail and must not take long."""
        ...


class Tracer(Protocol):
    """Somebody who has to know when a call begins, too."""

    def span(self, request: web.Request, exchange: Exchange) -> AbstractContextManager[None]:
        """Return what a call is made in."""
        ...

    def close(self) -> None:
        """Send what has not been sent. May block."""
        ...


def observe(observers: Sequence[Observer], tracer: Tracer | None = None) -> Middleware:
    """Return the middleware that opens an exchange for each call, and tells how it ended."""

    @web.middleware
    async def watch(request: web.Request, handler: Handler) -> web.StreamResponse:
        exchange = Exchange(request_id_of(request), time.monotonic())
        status = CLIENT_GONE
        with entered(exchange):
            try:
                response = await _traced(request, exchange, handler)
                status = response.status
                return response
            finally:
                e2e_s = time.monotonic() - exchange.started_at
                for observer in observers:
                    observer.ended(request, exchange, status=status, e2e_s=e2e_s)

    async def _traced(
        request: web.Request, exchange: Exchange, handler: Handler
    ) -> web.StreamResponse:
        if tracer is None:
            return await handler(request)
        with tracer.span(request, exchange):
            return await handler(request)

    return watch


def route_of(request: web.Request) -> str:
    """Return the route's own path, as `/v1/models/{model}`: there are few of them.

    What a caller made up stays out of metrics and logs.
    """
    resource = request.match_info.route.resource
    return UNROUTED if resource is None else resource.canonical
