"""The event loop behind the blocking calls: one thread for the whole process, whatever runs."""

from __future__ import annotations

import asyncio
import atexit
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from radixserve.errors import ProgramError

if TYPE_CHECKING:
    from collections.abc import Coroutine

ResultT = TypeVar("ResultT")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def run_blocking(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run a coroutine in the process's own loop and wait for it; an interrupt cancels it.

    Raises:
        ProgramError: called where an event loop runs: that loop would stand still.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        work.close()
        raise ProgramError("an event loop runs here: await the program instead of calling .run()")
    future = asyncio.run_coroutine_threadsafe(work, program_loop())
    try:
        return future.result()
    except KeyboardInterrupt:
        future.cancel()
        raise


def program_loop() -> asyncio.AbstractEventLoop:
    """Return the process's own loop, begun if need be."""
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            thread = threading.Thread(
                target=_loop.run_forever, name="radixserve-programs", daemon=True
            )
            thread.start()
            atexit.register(_loop.call_soon_threadsafe, _loop.stop)
        return _loop
