"""A server of a test's own, and whether it has come to rest."""

from __future__ import annotations

import dataclasses
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from radixserve.config import HttpConfig
from radixserve.server.app import build_app
from tests.kit.engines import assert_idle, until
from tests.kit.running import running
from tests.server.conftest import connected

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from radixserve.config import EngineConfig
    from radixserve.engine.async_engine import AsyncEngine
    from tests.server.conftest import Client


@asynccontextmanager
async def serving(
    config: EngineConfig, http: HttpConfig | None = None
) -> AsyncIterator[tuple[AsyncEngine, Client]]:
    """Run an engine and a server over it; prove at the end that nothing is left behind."""
    async with running(config) as engine:
        async with connected(build_app(engine, http or HttpConfig())) as client:
            yield engine, client
        await at_rest(engine)


async def at_rest(engine: AsyncEngine) -> None:
    """Wait until nothing runs; the invariants hold then, and every block is free or cached."""
    await until(lambda: not engine.core.has_work)
    assert_idle(engine.core)


def changed(config: EngineConfig, **parts: dict[str, Any]) -> EngineConfig:
    """Return settings with some fields of their parts changed."""
    for name, fields in parts.items():
        part = dataclasses.replace(getattr(config, name), **fields)
        config = dataclasses.replace(config, **{name: part})
    return config
