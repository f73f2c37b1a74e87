"""What the engine produces, told by writers: in one piece or event by event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import orjson
from aiohttp import web

from radixserve.server.errors import JSON_TYPE
from radixserve.server.merge import open_streams
from radixserve.server.sse import SSEWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from radixserve.engine.async_engine import AsyncEngine
    from radixserve.engine.request import GenerateRequest, TextDelta
    from radixserve.server.event_style import EventStyle


class EventWriter(Protocol):
    """Writes what one request of an answer produces."""

    def push(self, delta: TextDelta) -> list[dict[str, Any]]:
        """Take in what the engine produced; return the events that tell it.

        Mutates: the writer.
        """
        ...


async def relay_whole(
    engine: AsyncEngine,
    requests: Sequence[GenerateRequest],
    writers: Sequence[EventWriter],
    whole: Callable[[], Any],
) -> web.Response:
    """Run the requests to their end and send what `whole` makes of the writers."""
    async with open_streams(engine, requests) as deltas:
        async for index, delta in deltas:
            writers[index].push(delta)
    return web.Response(body=orjson.dumps(whole()), content_type=JSON_TYPE)


async def relay_events(
    request: web.Request,
    engine: AsyncEngine,
    requests: Sequence[GenerateRequest],
    writers: Sequence[EventWriter],
    style: EventStyle,
) -> web.StreamResponse:
    """Run the requests and send the writers' events as they come."""
    async with SSEWriter(request, style) as events, open_streams(engine, requests) as deltas:
        async for index, delta in deltas:
            for event in writers[index].push(delta):
                await events.send(event)
    return events.response
