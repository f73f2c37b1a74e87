"""What is done before the first call: once, whoever asks, and again if it went wrong."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING

import pytest

from radixserve.config import EngineConfig, ModelConfig
from radixserve.errors import ModelLoadError
from radixserve.frontend import EmbeddedBackend
from radixserve.frontend.backends.start_once import StartOnce

if TYPE_CHECKING:
    from pathlib import Path


class Start:
    """Counts attempts, of which the first few fail."""

    def __init__(self, *, failures: int = 0) -> None:
        self.count = 0
        self.gate = asyncio.Event()
        self._failures = failures

    async def __call__(self) -> None:
        self.count += 1
        await self.gate.wait()
        if self.count <= self._failures:
            raise OSError(f"attempt {self.count}")


async def test_all_who_ask_meanwhile_wait_for_one_attempt() -> None:
    start = Start()
    once = StartOnce(start)
    waiting = [asyncio.create_task(once()) for _ in range(5)]
    await asyncio.sleep(0)
    start.gate.set()
    await asyncio.gather(*waiting)
    await once()
    assert start.count == 1


async def test_who_is_cancelled_takes_nobody_along() -> None:
    start = Start()
    once = StartOnce(start)
    first, second = asyncio.create_task(once()), asyncio.create_task(once())
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    start.gate.set()
    await second
    assert first.cancelled()
    assert start.count == 1


async def test_a_failure_is_told_to_all_and_tried_again() -> None:
    start = Start(failures=1)
    start.gate.set()
    once = StartOnce(start)
    failed = await asyncio.gather(once(), once(), return_exceptions=True)
    assert [str(one) for one in failed] == ["attempt 1", "attempt 1"]
    await once()
    assert start.count == 2


async def test_it_is_done_anew_after_it_was_forgotten() -> None:
    start = Start()
    start.gate.set()
    once = StartOnce(start)
    await once()
    once.forget()
    await once()
    assert start.count == 2


async def test_a_model_that_was_not_there_is_looked_for_again(tmp_path: Path, folder: Path) -> None:
    place = tmp_path / "model"
    await asyncio.to_thread(place.mkdir)
    backend = EmbeddedBackend(config=EngineConfig(model=ModelConfig(model=str(place))))
    with pytest.raises(ModelLoadError):
        await backend.start()
    await asyncio.to_thread(shutil.copytree, folder, place, dirs_exist_ok=True)
    await backend.start()
    await backend.close()
