"""Several streams read as one, at the pace of whoever reads."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Sequence

    from radixserve.engine.async_engine import AsyncEngine
    from radixserve.engine.request import GenerateRequest, TextDelta

ItemT = TypeVar("ItemT")


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
        streams = [await stack.enter_async_context(engine.submit(one)) for one in requests]
        yield await stack.enter_async_context(aclosing(merge(streams)))


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
