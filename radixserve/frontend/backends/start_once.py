"""`StartOnce`: what has to be done before the first call, however many calls ask for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


class StartOnce:
    """Runs a coroutine once for all who wait meanwhile and later; again after it has failed.

    Args:
        start: Makes the coroutine. It goes on when those who wait for it are cancelled.
    """

    def __init__(self, start: Callable[[], Coroutine[object, object, None]]) -> None:
        self._start = start
        self._task: asyncio.Task[None] | None = None

    async def __call__(self) -> None:
        """Wait until it has been done.

        Raises:
            Exception: what it raises, to all who waited for that attempt.
        """
        if self._task is None or _has_failed(self._task):
            self._task = asyncio.get_running_loop().create_task(self._start())
        await asyncio.shield(self._task)

    def forget(self) -> None:
        """Let the next call do it anew."""
        self._task = None


def _has_failed(task: asyncio.Task[None]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
