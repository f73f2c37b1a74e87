"""A tiny model, engines and servers over it, and the command as a process of its own."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from aiohttp.test_utils import TestServer

from radixserve.server.app import build_app
from tests.kit.engines import engine_config
from tests.kit.running import running
from tests.kit.tiny_model import write_tiny_model
from tests.kit.tiny_tokenizer import write_tiny_tokenizer

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator, Awaitable, Callable
    from typing import Any, TypeAlias

    from radixserve.config import EngineConfig, HttpConfig
    from radixserve.engine.async_engine import AsyncEngine

    Serve: TypeAlias = Callable[[HttpConfig], Awaitable[str]]

REPO = Path(__file__).parents[2]
ENGINE_FLAGS = ("--num-threads", "1", "--num-blocks", "512", "--served-model-name", "tiny")


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model folder with random weights and a real tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    write_tiny_model(folder)
    return write_tiny_tokenizer(folder)


@pytest.fixture(scope="session")
def small_engine(model_folder: Path) -> EngineConfig:
    """Return the settings of an engine with room for a few prompts."""
    return engine_config(model_folder, num_blocks=512, max_num_seqs=8, max_num_batched_tokens=256)


@asynccontextmanager
async def serving(engine: AsyncEngine, config: HttpConfig) -> AsyncIterator[str]:
    """Serve an engine inside the `async with`. Returns: the address."""
    server = TestServer(build_app(engine, config))
    await server.start_server(shutdown_timeout=2.0)
    try:
        yield str(server.make_url("")).rstrip("/")
    finally:
        await server.close()


@pytest.fixture
async def engine(small_engine: EngineConfig) -> AsyncIterator[AsyncEngine]:
    """Return an engine of this test's own, started."""
    async with running(small_engine) as engine:
        yield engine


@pytest.fixture
async def serve(engine: AsyncEngine) -> AsyncIterator[Serve]:
    """Return a function that serves the test's engine with the settings given."""
    async with AsyncExitStack() as stack:
        yield lambda config: stack.enter_async_context(serving(engine, config))


async def start_command(*arguments: Any) -> Process:
    """Start `radixserve batch run` with these arguments."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "radixserve", "batch", "run"),
        *map(str, arguments),
        cwd=REPO,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def command(*arguments: Any) -> tuple[int, str]:
    """Run `radixserve batch run` to its end. Returns: exit code, and what it said."""
    process = await start_command(*arguments)
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, (out + err).decode()
