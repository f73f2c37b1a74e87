"""Server-sent events: a stream that has a real HTTP status, one end and no silent failure.

before the first event     nothing is sent; an exception becomes an ordinary error response
after it                   an exception becomes an event ``data: {"error": ...}``
always                     the last event is ``data: [DONE]``, unless the client has gone
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import aiohttp
import orjson
from aiohttp import web

from radixserve.server.errors import log_failure, reply_to

if TYPE_CHECKING:
    from types import TracebackType

_DONE = b"data: [DONE]\n\n"
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
    """

    def __init__(self, request: web.Request) -> None:
        self.response = web.StreamResponse(headers=_HEADERS)
        self._request = request

    async def __aenter__(self) -> SSEWriter:
        return self

    async def send(self, event: dict[str, Any]) -> None:
        """Write one event, after the headers if it is the first."""
        await self._write(b"data: " + orjson.dumps(event) + b"\n\n")

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if error is None:
            await self._write(_DONE)
            await self.response.write_eof()
            return False
        if not self.response.prepared or not isinstance(error, Exception):
            return False
        if isinstance(error, aiohttp.ClientConnectionResetError):
            return False
        await self._end_with(error)
        return True

    async def _end_with(self, error: Exception) -> None:
        log_failure(error, self._request)
        await self.send({"error": reply_to(error).details()})
        await self._write(_DONE)
        await self.response.write_eof()

    async def _write(self, data: bytes) -> None:
        if not self.response.prepared:
            await self.response.prepare(self._request)
        await self.response.write(data)
