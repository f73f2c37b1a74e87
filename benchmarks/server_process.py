"""A real `radixserve serve` for the length of a benchmark."""

from __future__ import annotations

import asyncio
import re
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

_URL = re.compile(rb"http://[\d.]+:\d+")


@asynccontextmanager
async def running_server(flags: Sequence[str]) -> AsyncIterator[str]:
    """Start a server on a free port, yield its address, and end it with SIGTERM.

    Raises:
        RuntimeError: it ended before it was ready; its own message is on stderr.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "radixserve",
        "serve",
        "--port",
        "0",
        "--log-level",
        "warning",
        *flags,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield await _read_url(process)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _read_url(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async for line in process.stdout:
        found = _URL.search(line)
        if found:
            return found.group().decode()
    raise RuntimeError("the server ended before it was ready")
