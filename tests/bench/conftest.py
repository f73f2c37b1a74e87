"""A tiny model served as it is, a server of another kind, and the command as a process."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from aiohttp.test_utils import TestServer

from radixserve.config import HttpConfig
from tests.batch.conftest import serving
from tests.kit.engines import engine_config
from tests.kit.running import running
from tests.kit.tiny_model import write_tiny_model
from tests.kit.tiny_tokenizer import write_tiny_tokenizer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from typing import Any, TypeAlias

    from aiohttp import web

    ServeApp: TypeAlias = Callable[[web.Application], Awaitable[str]]

REPO = Path(__file__).parents[2]
IDS = ("--id-range", "3:320")
"""Ids that the tiny model has."""


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model folder with random weights and a real tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    write_tiny_model(folder)
    return write_tiny_tokenizer(folder)


@pytest.fixture
async def url(model_folder: Path) -> AsyncIterator[str]:
    """Return the address of the real server over an engine of this test's own.

    Its blocks hold one token, so that what is cached can be told to the token.
    """
    config = engine_config(model_folder, num_blocks=4096, block_size=1, max_num_seqs=8)
    async with running(config) as engine, serving(engine, HttpConfig()) as url:
        yield url


@asynccontextmanager
async def _served(app: web.Application) -> AsyncIterator[str]:
    server = TestServer(app)
    await server.start_server(shutdown_timeout=1.0)
    try:
        yield str(server.make_url("")).rstrip("/")
    finally:
        await server.close()


@pytest.fixture
async def serve_app() -> AsyncIterator[ServeApp]:
    """Return a function that serves an application. Returns: its address."""
    async with AsyncExitStack() as stack:
        yield lambda app: stack.enter_async_context(_served(app))


async def bench(*arguments: Any) -> tuple[int, str, str]:
    """Run `radixserve bench` to its end. Returns: exit code, output, what it said beside."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "radixserve", "bench"),
        *map(str, arguments),
        cwd=REPO,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()
