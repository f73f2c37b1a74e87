"""Several streams read as one: all items, each stream's order, no task left behind."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from radixserve.server.merge import merge

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


async def count_to(end: int, *, then: Exception | None = None) -> AsyncIterator[int]:
    for number in range(end):
        await asyncio.sleep(0)
        yield number
    if then is not None:
        raise then


async def wait_for_ever() -> AsyncIterator[int]:
    await asyncio.Event().wait()
    yield 0


@pytest.mark.parametrize("lengths", [[3], [0], [3, 0, 5], [1] * 20])
async def test_every_item_comes_once_and_in_its_streams_order(lengths: list[int]) -> None:
    items = [item async for item in merge([count_to(length) for length in lengths])]
    for index, length in enumerate(lengths):
        assert [number for at, number in items if at == index] == list(range(length))
    assert len(items) == sum(lengths)


async def test_a_stream_that_fails_fails_the_whole_at_once() -> None:
    before = asyncio.all_tasks()
    with pytest.raises(KeyError):
        async for _ in merge([wait_for_ever(), count_to(2, then=KeyError("broken"))]):
            pass
    assert asyncio.all_tasks() == before


async def test_leaving_early_leaves_no_task() -> None:
    before = asyncio.all_tasks()
    async with aclosing(merge([wait_for_ever(), count_to(5)])) as items:
        async for item in items:
            assert item == (1, 0)
            break
    assert asyncio.all_tasks() == before


async def test_cancellation_leaves_no_task() -> None:
    before = asyncio.all_tasks()

    async def read() -> None:
        async with aclosing(merge([wait_for_ever(), wait_for_ever()])) as items:
            async for _ in items:
                pass

    reading = asyncio.create_task(read())
    await asyncio.sleep(0.01)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert asyncio.all_tasks() == before
