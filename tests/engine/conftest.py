"""Folders with a tiny random model and with the real one, and engines over the tiny one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from radixserve.core import admission
from radixserve.engine.async_engine import AsyncEngine
from radixserve.engine.sync_engine import Engine
from radixserve.models.cache_folder import is_complete
from radixserve.models.default_model import default_model_folder
from tests.kit.engines import StepGate, assert_idle, engine_config
from tests.kit.tiny_model import write_tiny_model
from tests.kit.tiny_tokenizer import write_tiny_tokenizer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path
    from typing import TypeAlias

    MakeEngine: TypeAlias = Callable[..., Engine]
    StartEngine: TypeAlias = Callable[..., Awaitable[AsyncEngine]]
    MakeGate: TypeAlias = Callable[[AsyncEngine], StepGate]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model folder with random weights and a real tokenizer."""
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_model(folder)
    return write_tiny_tokenizer(folder)


@pytest.fixture(scope="session")
def real_folder() -> Path:
    """Return the default model's folder; skips where it was never fetched."""
    folder = default_model_folder()
    if not is_complete(folder):
        pytest.skip(f"the default model's weights are not in {folder}: run 'radixserve pull'")
    return folder


@pytest.fixture(scope="session")
def make_engine(folder: Path) -> MakeEngine:
    """Build a blocking engine over the tiny model; settings as in `engine_config`."""

    def make(**settings: Any) -> Engine:
        return Engine(config=engine_config(folder, **settings))

    return make


@pytest.fixture
def eager_admission(monkeypatch: pytest.MonkeyPatch) -> None:
    """Admit without leaving room for growth, so that small pools lead to preemptions."""
    monkeypatch.setattr(admission, "MIN_GROWTH_TOKENS", 0)


@pytest.fixture
def make_gate(start_engine: StartEngine) -> Iterator[MakeGate]:
    """Put a gate before an engine's forward passes; it is opened before the engine is stopped."""
    del start_engine  # asked for, so that it ends after this fixture
    gates: list[StepGate] = []

    def make(engine: AsyncEngine) -> StepGate:
        gates.append(StepGate(engine.core))
        return gates[-1]

    yield make
    for gate in gates:
        gate.open()


@pytest.fixture
async def start_engine(folder: Path) -> AsyncIterator[StartEngine]:
    """Start engines over the tiny model, and prove at the end that they leave nothing behind."""
    engines: list[AsyncEngine] = []

    async def start(**settings: Any) -> AsyncEngine:
        engine = AsyncEngine.from_config(engine_config(folder, **settings))
        await engine.start()
        engines.append(engine)
        return engine

    yield start
    for engine in engines:
        await engine.stop()
        assert not engine._streams
        if engine.is_alive:
            assert_idle(engine.core)
    assert asyncio.all_tasks() == {asyncio.current_task()}
