"""The generating routes for use from within: for batches, which have no caller on the line.

Batches go through the very handlers that the routes have, over HTTP on a loopback port that the
system picks. So their answers cannot differ from the routes', in errors, usage or anything else,
and no part of the handlers has to know of a second way in. Instead of a key, which would be one
more caller to keep apart, a request shows a token that is made for one batch and that stands for
the batch's owner: its part of the cache, its name in the policy `fair`.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from aiohttp import web

from radixserve.errors import AuthenticationError
from radixserve.server.auth import CALLER
from radixserve.server.errors import error_middleware
from radixserve.server.exchange import current_exchange
from radixserve.server.generating_routes import GENERATING_ROUTES
from radixserve.server.keys import digest_of
from radixserve.server.observe import observe
from radixserve.server.request_id import add_request_id
from radixserve.server.state import ENGINE, HTTP_CONFIG, PREPARED_PER_ROUND, TURNS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from aiohttp.typedefs import Handler, Middleware

    from radixserve.config import HttpConfig
    from radixserve.engine.async_engine import AsyncEngine
    from radixserve.server.caller import Caller

TOKEN_HEADER = "X-Radixserve-Inner-Token"
_LOOPBACK = "127.0.0.1"


class InnerDoor:
    """Lets requests of this process in, in somebody's name.

    Args:
        url: Where it listens.
    """

    def __init__(self) -> None:
        self.url = ""
        self._callers: dict[bytes, Caller] = {}

    @contextmanager
    def opened_for(self, caller: Caller) -> Iterator[dict[str, str]]:
        """Return the headers that let requests in as the caller's, inside the `with`."""
        token = secrets.token_urlsafe(32)
        self._callers[digest_of(token)] = caller
        try:
            yield {TOKEN_HEADER: token}
        finally:
            del self._callers[digest_of(token)]

    def caller_with(self, token: str) -> Caller:
        """Return whom a token stands for.

        Raises:
            AuthenticationError: nobody.
        """
        caller = self._callers.get(digest_of(token))
        if caller is None:
            raise AuthenticationError("This port is the server's own.")
        return caller


@asynccontextmanager
async def open_inner_door(engine: AsyncEngine, config: HttpConfig) -> AsyncIterator[InnerDoor]:
    """Listen for requests of this process inside the `async with`."""
    door = InnerDoor()
    runner = web.AppRunner(
        _inner_app(engine, config, door),
        handle_signals=False,
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=0.0,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, _LOOPBACK, 0).start()
        door.url = f"http://{_LOOPBACK}:{runner.addresses[0][1]}"
        yield door
    finally:
        await runner.cleanup()


def _inner_app(engine: AsyncEngine, config: HttpConfig, door: InnerDoor) -> web.Application:
    app = web.Application(
        client_max_size=config.max_body_bytes,
        middlewares=[observe([]), error_middleware, _name_caller(door)],
    )
    app[ENGINE] = engine
    app[HTTP_CONFIG] = config
    app[TURNS] = asyncio.Semaphore(PREPARED_PER_ROUND)
    app.on_response_prepare.append(add_request_id)
    for path, handler in GENERATING_ROUTES.items():
        app.router.add_post(path, handler)
    return app


def _name_caller(door: InnerDoor) -> Middleware:
    """Return the middleware that finds out for whom a request is."""

    @web.middleware
    async def name(request: web.Request, handler: Handler) -> web.StreamResponse:
        exchange = current_exchange()
        assert exchange is not None
        caller = door.caller_with(request.headers.get(TOKEN_HEADER, ""))
        exchange.caller = request[CALLER] = caller
        return await handler(request)

    return name
