"""What the engine produces, told by writers: in one piece or event by event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import orjson
from aiohttp import web

from radixserve.server.errors import JSON_TYPE
from radixserve.server.sse import SSEWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from radixserve.engine.request import TextDelta
    from radixserve.server.choice_deltas import ChoiceDeltas
    from radixserve.server.event_style import EventStyle


class EventWriter(Protocol):
    """Writes one part of an answer."""

    def push(self, delta: TextDelta) -> list[dict[str, Any]]:
        """Take in what the engine produced; return the events that tell it.

        Mutates: the writer.
        """
        ...


async def relay_whole(
    running: AbstractAsyncContextManager[ChoiceDeltas],
    writers: Sequence[EventWriter],
    whole: Callable[[], Any],
) -> web.Response:
    """Read what runs to its end and send what `whole` makes of the writers.

    Args:
        running: Deltas, each with the index of its writer; entering it submits the requests.
    """
    async with running as deltas:
        async for index, delta in deltas:
            writers[index].push(delta)
    return web.Response(body=orjson.dumps(whole()), content_type=JSON_TYPE)


async def relay_events(
    request: web.Request,
    running: AbstractAsyncContextManager[ChoiceDeltas],
    writers: Sequence[EventWriter],
    style: EventStyle,
) -> web.StreamResponse:
    """Read what runs and send the writers' events as they come. Arguments as above."""
    async with SSEWriter(request, style) as events, running as deltas:
        async for index, delta in deltas:
            for event in writers[index].push(delta):
                await events.send(event)
    return events.response
