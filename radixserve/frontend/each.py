"""Structured concurrency: several pieces of work, and no task left behind whatever happens."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar, cast

from radixserve.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

OnError: TypeAlias = Literal["raise", "return", "cancel_rest"]
ResultT = TypeVar("ResultT")


async def run_each(
    works: Sequence[Callable[[], Awaitable[ResultT]]],
    *,
    limit: int | None = None,
    on_error: OnError = "raise",
) -> list[ResultT]:
    """Run all, at most `limit` at a time, and return their results in order.

    Args:
        on_error: raise cancels the others and raises the first failure; return puts failures in
            their places; cancel_rest does so after cancelling those that still run.
    Raises:
        BaseException: the first failure (raise); being cancelled cancels all.
    """
    if on_error not in ("raise", "return", "cancel_rest"):
        raise InvalidRequestError(
            f"on_error must be raise, return or cancel_rest; got {on_error!r}", param="on_error"
        )
    seats = asyncio.Semaphore(limit or max(1, len(works)))

    async def seated(work: Callable[[], Awaitable[ResultT]]) -> ResultT:
        async with seats:
            return await work()

    tasks: list[asyncio.Future[ResultT]] = [asyncio.ensure_future(seated(work)) for work in works]
    try:
        if on_error == "return":
            await asyncio.gather(*tasks, return_exceptions=True)
        elif tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        unfinished = [task for task in tasks if not task.done()]
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)
    if on_error == "raise":
        for task in tasks:
            if not task.cancelled() and (failure := task.exception()) is not None:
                raise failure
    # Where failures are asked for, the caller looks for them; elsewhere there are none.
    failures = [_failure_of(task) for task in tasks]
    return [
        task.result() if failure is None else cast(ResultT, failure)
        for task, failure in zip(tasks, failures, strict=True)
    ]


def _failure_of(task: asyncio.Future[ResultT]) -> BaseException | None:
    if task.cancelled():
        return asyncio.CancelledError("cancelled, because a sibling failed")
    return task.exception()
