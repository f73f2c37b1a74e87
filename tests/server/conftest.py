"""HTTP servers for the tests: any application, and the real one over a tiny random model."""

from __future__ import annotations

import dataclasses
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from aiohttp.test_utils import TestClient, TestServer

from radixserve.config import CacheConfig, EngineConfig, HttpConfig, ModelConfig, SchedulerConfig
from radixserve.server.app import build_app
from tests.kit.running import running
from tests.kit.tiny_model import write_tiny_model
from tests.kit.tiny_tokenizer import write_tiny_tokenizer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path
    from typing import TypeAlias

    from aiohttp import web

    from radixserve.engine.async_engine import AsyncEngine

    Client: TypeAlias = TestClient[web.Request, web.Application]
    OpenClient: TypeAlias = Callable[[web.Application], Awaitable[Client]]
    ServeShared: TypeAlias = Callable[[HttpConfig], Awaitable[Client]]
    StartEngine: TypeAlias = Callable[[EngineConfig], Awaitable[AsyncEngine]]

MODEL = "tiny"
SHARED_CONTEXT_LEN = 256
"""Tokens; short, so that filling it takes no time."""


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model folder with random weights and a real tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    write_tiny_model(folder)
    return write_tiny_tokenizer(folder)


@pytest.fixture(scope="session")
def engine_config(model_folder: Path) -> EngineConfig:
    """Return the settings of the tests' engines; `dataclasses.replace` changes one."""
    return EngineConfig(
        model=ModelConfig(model=str(model_folder), served_model_name=MODEL, dtype="float32"),
        cache=CacheConfig(num_blocks=512),
        scheduler=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=256),
        num_threads=1,
        seed=0,
    )


@asynccontextmanager
async def connected(app: web.Application) -> AsyncIterator[Client]:
    """Serve an application as `run.serve` does, and connect to it."""
    client: Client = TestClient(TestServer(app))
    await client.server.start_server(shutdown_timeout=2.0)
    try:
        yield client
    finally:
        await client.close()


@pytest.fixture
async def start_engine() -> AsyncIterator[StartEngine]:
    """Return a function that starts an engine of this test's own."""
    async with AsyncExitStack() as stack:
        yield lambda config: stack.enter_async_context(running(config))


@pytest.fixture
async def open_client() -> AsyncIterator[OpenClient]:
    """Return a function that serves an application and connects to it."""
    async with AsyncExitStack() as stack:
        yield lambda app: stack.enter_async_context(connected(app))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_engine(engine_config: EngineConfig) -> AsyncIterator[AsyncEngine]:
    """Return an engine that many tests share: what is cached depends on their order.

    Tests that use it run in the session's event loop.
    """
    model = dataclasses.replace(engine_config.model, max_model_len=SHARED_CONTEXT_LEN)
    async with running(dataclasses.replace(engine_config, model=model)) as engine:
        yield engine


@pytest_asyncio.fixture(loop_scope="session")
async def serve_shared(shared_engine: AsyncEngine) -> AsyncIterator[ServeShared]:
    """Return a function that serves the shared engine with the settings given."""
    async with AsyncExitStack() as stack:
        yield lambda config: stack.enter_async_context(connected(build_app(shared_engine, config)))


@pytest_asyncio.fixture(loop_scope="session")
async def client(serve_shared: ServeShared) -> Client:
    """Return a client of the real server over the shared engine."""
    return await serve_shared(HttpConfig())


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def roomy_client(engine_config: EngineConfig) -> AsyncIterator[Client]:
    """Return a client of a server whose context holds tools and long conversations."""
    async with (
        running(engine_config) as engine,
        connected(build_app(engine, HttpConfig())) as client,
    ):
        yield client
