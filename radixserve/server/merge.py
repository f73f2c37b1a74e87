"""Several streams read as one, at the pace of whoever reads."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from radixserve.server.exchange import current_exchange, owned

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Sequence

    from radixserve.engine.async_engine import AsyncEngine
    from radixserve.engine.request import GenerateRequest, TextDelta
    from radixserve.engine.stream import RequestStream

ItemT = TypeVar("ItemT")

TOKENS_PER_ROUND = 16_384
"""Prompt tokens that are submitted in one round of the event loop: about a millisecond of it."""


@asynccontextmanager
async def open_streams(
    engine: AsyncEngine, requests: Sequence[GenerateRequest]
) -> AsyncIterator[AsyncIterator[tuple[int, TextDelta]]]:
    """Submit every request, or none, and read their streams as one.

    Leaving, for whatever reason, aborts what still runs.

    Raises:
        RequestError: a request was refused; those submitted before it are aborted.
    """
    async with AsyncExitStack() as stack:
        streams: list[RequestStream] = []
        stack.callback(_note, streams)
        taken = 0
        for one in requests:
            stream = engine.submit(owned(one))
            streams.append(stream)
            await stack.enter_async_context(stream)
            taken += len(one.prompt_ids)
            if taken > TOKENS_PER_ROUND:
                taken = 0
                await asyncio.sleep(0)
        yield await stack.enter_async_context(aclosing(merge(streams)))


def _note(streams: Sequence[RequestStream]) -> None:
    exchange = current_exchange()
    if exchange is not None:
        exchange.note(streams)


async def merge(streams: Sequence[AsyncIterable[ItemT]]) -> AsyncGenerator[tuple[int, ItemT], None]:
    """Yield (index of the stream, item) as items come; ends when all streams have ended.

    At most one item of each stream is read ahead. Items of one stream keep their order.

    Raises:
        Exception: what a stream raises, at once; the other streams are left to their owner.
    """
    if len(streams) == 1:
        async for item in streams[0]:
            yield 0, item
        return
    iterators = [aiter(stream) for stream in streams]
    reading = {_read(iterator): index for index, iterator in enumerate(iterators)}
    try:
        while reading:
            done, _ = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=reading.__getitem__):
                index = reading.pop(task)
                for item in task.result():
                    yield index, item
                    reading[_read(iterators[index])] = index
    finally:
        await _cancel(reading)


def _read(iterator: AsyncIterator[ItemT]) -> asyncio.Task[list[ItemT]]:
    return asyncio.create_task(_next_item(iterator))


async def _next_item(iterator: AsyncIterator[ItemT]) -> list[ItemT]:
    """Return the next item in a list, or an empty list at the end of the stream."""
    async for item in iterator:
        return [item]
    return []


async def _cancel(tasks: Iterable[asyncio.Task[list[ItemT]]]) -> None:
    """Cancel the readers and wait for them; what they would still have said is dropped."""
    waiting = list(tasks)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
