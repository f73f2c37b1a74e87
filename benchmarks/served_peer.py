"""Any server for the length of a run: started by a command, awaited, ended by its own pid."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import socket
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator
    from pathlib import Path

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_POLL_S = 0.2
_GRACE_S = 20.0
_SHOWN_LEN = 2000


@dataclass(frozen=True, slots=True)
class Peer:
    """A server that can be started.

    Attributes:
        name: In the tables.
        command: With `{port}` where the port goes; words such as NAME=value before the program
            are its environment, as in a shell.
    """

    name: str
    command: str

    @classmethod
    def parse(cls, text: str) -> Peer:
        """Return the server that `name=command` describes.

        Raises:
            ValueError: it is not of that form.
        """
        name, found, command = text.partition("=")
        if not found or not name or "{port}" not in command:
            raise ValueError(f"a server is 'name=command with {{port}}'; got {text!r}")
        return cls(name, command)

    def words(self, port: int) -> tuple[dict[str, str], list[str]]:
        """Return what its command adds to the environment, and the command itself."""
        words = shlex.split(self.command.replace("{port}", str(port)))
        settings = {}
        while words and _ASSIGNMENT.match(words[0]):
            name, _, value = words.pop(0).partition("=")
            settings[name] = value
        return settings, words


@asynccontextmanager
async def serving(peer: Peer, *, log: Path, patience_s: float) -> AsyncIterator[str]:
    """Start a server on a free port, yield its address when it answers, and end it.

    Args:
        log: Its output is added to this file.
        patience_s: How long it may take until it answers.

    Raises:
        RuntimeError: it has ended, or does not answer in time; tells the end of its output.
    """
    port = free_port()
    settings, words = peer.words(port)
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *words,
            env={**os.environ, **settings},
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # what it starts itself can be ended with it
        )
    url = f"http://127.0.0.1:{port}"
    try:
        await _until_it_answers(process, peer, url, log, patience_s)
        yield url
    finally:
        await _end(process)


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port: int = reserved.getsockname()[1]
    return port


async def _until_it_answers(
    process: Process, peer: Peer, url: str, log: Path, patience_s: float
) -> None:
    deadline = time.monotonic() + patience_s
    timeout = aiohttp.ClientTimeout(total=10.0)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        while time.monotonic() < deadline:
            if process.returncode is not None:
                raise RuntimeError(f"{peer.name} has ended: {_end_of(log)}")
            with suppress(aiohttp.ClientError, TimeoutError, OSError):
                async with session.get(f"{url}/v1/models") as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(_POLL_S)
    raise RuntimeError(f"{peer.name} did not answer within {patience_s:.0f} s: {_end_of(log)}")


async def _end(process: Process) -> None:
    """Ask the server to stop, then end it and all it has started, by the group that it leads."""
    if process.returncode is None:
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), _GRACE_S)
    except TimeoutError:
        pass
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _end_of(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-_SHOWN_LEN:]
