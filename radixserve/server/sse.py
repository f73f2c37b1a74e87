"""Server-sent events: a stream that has a real HTTP status, one end and no silent failure.

before the first event     nothing is sent; an exception becomes an ordinary error response
after it                   an exception becomes an event, in the shape of the route's API
always                     the style's last event ends the stream, unless the client has gone
while nothing happens      a comment every `KEEP_ALIVE_S`, which clients skip: proxies cut
                           connections that are silent. The first one commits to status 200.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp import web

from radixserve.server.errors import log_failure, reply_to
from radixserve.server.event_style import OPENAI_EVENTS, EventStyle
from radixserve.server.exchange import current_exchange

if TYPE_CHECKING:
    from types import TracebackType

    from aiohttp.abc import AbstractStreamWriter

KEEP_ALIVE_S = 15.0
"""Common proxies give up after 30 or 60 seconds of silence."""

_COMMENT = b": keep-alive\n\n"
_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class SSEWriter:
    """Writes one stream of events; leaving the `async with` ends it.

    Use as::

        async with SSEWriter(request) as events:
            await events.send({...})
        return events.response

    Each `send` waits until the connection takes the event, so a slow reader slows only its own
    request. A client that goes away cancels the handler; then nothing more is written.

    Args:
        request: The request that the stream answers.
        style: How the route's API writes events.
    """

    def __init__(self, request: web.Request, style: EventStyle = OPENAI_EVENTS) -> None:
        self.response = web.StreamResponse(headers=_HEADERS)
        self._request = request
        self._style = style
        self._num_sent = 0
        self._turn = asyncio.Lock()
        self._writer: AbstractStreamWriter | None = None
        self._num_writes = 0
        self._keeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> SSEWriter:
        self._keeper = asyncio.create_task(self._keep_alive())
        return self

    async def send(self, event: dict[str, Any]) -> None:
        """Write one event, after the headers if it is the first."""
        await self._write(self._style.frame(event))
        self._num_sent += 1

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        await self._stop_keeper(waits=error is None or isinstance(error, Exception))
        if error is None:
            await self._end()
            return False
        if not self.response.prepared or not isinstance(error, Exception):
            return False
        if isinstance(error, aiohttp.ClientConnectionResetError):
            return False
        await self._end_with(error)
        return True

    async def _end_with(self, error: Exception) -> None:
        log_failure(error, self._request)
        reply = reply_to(error)
        exchange = current_exchange()
        if exchange is not None:
            exchange.error_code = reply.code
        await self.send(self._style.error_event(reply, self._num_sent))
        await self._end()

    async def _end(self) -> None:
        await self._write(self._style.end)
        await self.response.write_eof()

    async def _keep_alive(self) -> None:
        """Write a comment after each span in which nothing else was written."""
        with contextlib.suppress(aiohttp.ClientConnectionResetError):
            while True:
                before = self._num_writes
                await asyncio.sleep(KEEP_ALIVE_S)
                if self._num_writes == before:
                    await self._write(_COMMENT)

    async def _stop_keeper(self, *, waits: bool) -> None:
        """End the comments; if something comes after, not in the middle of one."""
        assert self._keeper is not None
        if waits:
            async with self._turn:
                self._keeper.cancel()
        self._keeper.cancel()
        await asyncio.wait([self._keeper])

    async def _write(self, data: bytes) -> None:
        self._num_writes += 1
        if self._writer is not None:
            # Whole: the connection is given all of `data` before anything is waited for.
            await self._writer.write(data)
            return
        async with self._turn:
            self._writer = await self.response.prepare(self._request)
            assert self._writer is not None
            await self._writer.write(data)
