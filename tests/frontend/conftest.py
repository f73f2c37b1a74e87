"""Backends over the tiny random model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from radixserve.engine.async_engine import AsyncEngine
from radixserve.frontend import EmbeddedBackend
from tests.kit.engines import assert_idle, engine_config, until
from tests.kit.tiny_model import write_tiny_model
from tests.kit.tiny_tokenizer import write_tiny_tokenizer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path
    from typing import TypeAlias

    from radixserve.engine.engine_core import EngineCore

    StartBackend: TypeAlias = Callable[..., Awaitable[EmbeddedBackend]]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model folder with random weights and a real tokenizer."""
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_model(folder)
    return write_tiny_tokenizer(folder)


async def settled(core: EngineCore) -> None:
    """Wait until an engine has nothing to do, and check that it holds nothing."""
    await until(lambda: not core.has_work)
    assert_idle(core)


@pytest.fixture
async def start_backend(folder: Path) -> AsyncIterator[StartBackend]:
    """Start backends over engines, and prove at the end that they leave nothing behind."""
    started: list[EmbeddedBackend] = []

    async def start(**settings: Any) -> EmbeddedBackend:
        backend = EmbeddedBackend(AsyncEngine.from_config(engine_config(folder, **settings)))
        await backend.start()
        started.append(backend)
        return backend

    yield start
    for backend in started:
        await settled(backend.engine.core)
        await backend.engine.stop()


@pytest.fixture
async def backend(start_backend: StartBackend) -> EmbeddedBackend:
    """Return one backend."""
    return await start_backend()
