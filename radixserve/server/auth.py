"""The API key: asked for on every route but three, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING

from aiohttp import web

from radixserve.errors import AuthenticationError

if TYPE_CHECKING:
    from aiohttp.typedefs import Handler, Middleware

OPEN_PATHS = frozenset({"/health", "/ready", "/metrics"})
"""What probes and scrapers read without a key. Every other path is closed, routed or not."""

_OPEN_METHODS = frozenset({"GET", "HEAD"})


def require_api_key(api_key: str | None) -> Middleware:
    """Return the middleware that asks for `api_key` as a bearer token; None asks for nothing.

    Source: RFC 6750 section 2.1; RFC 9110 section 11.1 (the scheme's case does not matter).
    """
    expected = None if api_key is None else _digest(api_key)

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if expected is not None and not _is_open(request):
            _check_key(request, expected)
        return await handler(request)

    return check


def _is_open(request: web.Request) -> bool:
    return request.path in OPEN_PATHS and request.method in _OPEN_METHODS


def _check_key(request: web.Request, expected: bytes) -> None:
    given = request.headers.getall("Authorization", [])
    scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    known = hmac.compare_digest(_digest(token.strip()), expected)
    if scheme.lower() != "bearer" or not known:
        raise AuthenticationError(
            "The API key is missing or wrong; send it as 'Authorization: Bearer KEY'."
        )


def _digest(key: str) -> bytes:
    """Return a digest, so that a compare takes the same time whatever the lengths."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
