"""A started engine for the length of a block."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from radixserve.engine.async_engine import AsyncEngine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from radixserve.config import EngineConfig


@asynccontextmanager
async def running(config: EngineConfig) -> AsyncIterator[AsyncEngine]:
    """Load and start an engine, and stop it on leaving."""
    engine = AsyncEngine.from_config(config)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()
