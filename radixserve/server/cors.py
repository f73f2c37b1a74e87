"""Lets web pages of chosen origins call the server. Off unless origins are named.

Source: the Fetch standard, "HTTP-CORS protocol".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import hdrs, web

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from aiohttp.typedefs import Handler, Middleware

ANY = "*"
PREFLIGHT_AGE_S = 600
"""How long a browser may remember what it was told."""
EXPOSED = "X-Request-Id, Retry-After"

_METHODS = "GET, POST, OPTIONS"


def answer_preflights(origins: Collection[str]) -> Middleware:
    """Return the middleware that tells a browser what a page may send, before it asks for a key.

    A browser asks without the key that it is about to send.
    """

    @web.middleware
    async def preflight(request: web.Request, handler: Handler) -> web.StreamResponse:
        is_question = (
            request.method == hdrs.METH_OPTIONS
            and hdrs.ACCESS_CONTROL_REQUEST_METHOD in request.headers
            and _allowed(request, origins) is not None
        )
        if not is_question:
            return await handler(request)
        asked = request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, "")
        headers = {
            hdrs.ACCESS_CONTROL_ALLOW_METHODS: _METHODS,
            hdrs.ACCESS_CONTROL_MAX_AGE: str(PREFLIGHT_AGE_S),
        }
        if asked:
            headers[hdrs.ACCESS_CONTROL_ALLOW_HEADERS] = asked
        return web.Response(status=204, headers=headers)

    return preflight


def add_cors_headers(
    origins: Collection[str],
) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    """Return the signal handler that names the allowed origin in every answer, errors too."""

    async def add(request: web.Request, response: web.StreamResponse) -> None:
        if ANY not in origins:
            response.headers.add(hdrs.VARY, hdrs.ORIGIN)
        allowed = _allowed(request, origins)
        if allowed is not None:
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = allowed
            response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = EXPOSED

    return add


def _allowed(request: web.Request, origins: Collection[str]) -> str | None:
    origin = request.headers.get(hdrs.ORIGIN)
    if origin is None:
        return None
    return ANY if ANY in origins else origin if origin in origins else None
