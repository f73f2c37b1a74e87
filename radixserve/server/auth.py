"""Who asks: the API key of every call, and whose part of the cache it reads and writes.

    open        GET /health, GET /ready                nobody is asked
    closed      everything else, routed or not         any key, when keys are set
    admin       routes that call `require_admin`       an admin key; without any key at all only
                                                       on a server that listens on loopback

A key comes as `Authorization: Bearer KEY` or, as Anthropic's clients send it, as `X-Api-Key: KEY`.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from aiohttp import web

from radixserve.errors import AuthenticationError, PermissionDeniedError
from radixserve.server.caller import ANYBODY, Caller
from radixserve.server.exchange import current_exchange

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiohttp.typedefs import Handler, Middleware

    from radixserve.server.keys import ApiKey, KeyRing

OPEN_PATHS = frozenset({"/health", "/ready"})
"""What probes read without a key. Every other path is closed, routed or not."""

_OPEN_METHODS = frozenset({"GET", "HEAD"})


CALLER: web.RequestKey[Caller] = web.RequestKey("caller", Caller)


def require_api_key(keys: KeyRing, *, host: str, share_cache: bool = False) -> Middleware:
    """Return the middleware that finds out who asks, and refuses who may not.

    Args:
        keys: None of them: everybody may ask.
        host: Where the server listens. Without any key everybody is an admin on loopback.
        share_cache: Give all keys one namespace of the cache.
    Source: RFC 6750 section 2.1; RFC 9110 section 11.1 (the scheme's case does not matter).
    """
    is_isolated = keys.num_callers > 1 and not share_cache
    anybody = Caller(is_admin=is_loopback(host))

    def identify(request: web.Request) -> Caller:
        if not keys:
            return anybody
        if request.path in OPEN_PATHS and request.method in _OPEN_METHODS:
            return ANYBODY
        key = _shown_key(request, keys)
        return Caller(key.name, key.is_admin, key.name if is_isolated else "")

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        caller = request[CALLER] = identify(request)
        exchange = current_exchange()
        if exchange is not None:
            exchange.caller = caller
        return await handler(request)

    return check


def caller_of(request: web.Request) -> Caller:
    """Return who asks."""
    caller: Caller = request.get(CALLER, ANYBODY)
    return caller


def is_admin(request: web.Request) -> bool:
    """Whether the caller may use the admin routes, and see other callers' texts."""
    return caller_of(request).is_admin


def require_admin(request: web.Request) -> None:
    """Let only admins pass.

    Raises:
        PermissionDeniedError: the caller is none; says how to become one.
    """
    if not is_admin(request):
        raise PermissionDeniedError(
            "This route needs an admin key. Start the server with --admin-api-key, "
            "--admin-api-key-file or RADIXSERVE_ADMIN_API_KEY, and send the key as "
            "'Authorization: Bearer KEY'. Only a server that has no keys at all and listens on a "
            "loopback address opens it to everybody."
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _shown_key(request: web.Request, keys: KeyRing) -> ApiKey:
    shown = set(_tokens(request))
    found = keys.find(shown.pop()) if len(shown) == 1 else None
    if found is None:
        raise AuthenticationError(
            "The API key is missing or wrong; send it as 'Authorization: Bearer KEY' or "
            "'X-Api-Key: KEY'."
        )
    return found


def _tokens(request: web.Request) -> Iterator[str]:
    """Yield what could be a key; one that is shown twice is the same, two that differ are none."""
    for value in request.headers.getall("Authorization", []):
        scheme, _, token = value.partition(" ")
        yield token.strip() if scheme.lower() == "bearer" else ""
    yield from (value.strip() for value in request.headers.getall("X-Api-Key", []))
