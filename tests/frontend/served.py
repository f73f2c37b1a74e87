"""One engine, reached in three ways: in this process, over our own protocol, over OpenAI's."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiohttp.test_utils import TestServer

from radixserve.config import HttpConfig, KeyConfig
from radixserve.frontend.backends.embedded import EmbeddedBackend
from radixserve.frontend.backends.openai import OpenAIBackend
from radixserve.frontend.backends.remote import RemoteBackend
from radixserve.server.app import build_app

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from radixserve.engine.async_engine import AsyncEngine
    from radixserve.frontend import Backend

WAYS = ("embedded", "remote", "openai")


@dataclass(frozen=True)
class Served:
    """An engine and its server on loopback."""

    engine: AsyncEngine
    url: str
    token: str | None = None

    def backend(self, way: str) -> EmbeddedBackend | RemoteBackend | OpenAIBackend:
        """Return a backend that reaches the engine in that way."""
        if way == "embedded":
            return EmbeddedBackend(self.engine)
        if way == "remote":
            return RemoteBackend(self.url, self.token)
        return OpenAIBackend(self.url, api_key=self.token, continues_turns=True)

    @asynccontextmanager
    async def reached(self, way: str) -> AsyncIterator[Backend]:
        """Reach the engine, and hang up at the end."""
        backend = self.backend(way)
        await backend.start()
        try:
            yield backend
        finally:
            await backend.close()


@asynccontextmanager
async def served(engine: AsyncEngine, keys: tuple[str, ...] = ()) -> AsyncIterator[Served]:
    """Serve an engine that has been started.

    Args:
        keys: Asked for, if there are any; the first is used. With several, what comes over HTTP
            shares no KV with what runs in this process.
    """
    server = TestServer(build_app(engine, HttpConfig(keys=KeyConfig(api_keys=keys))))
    await server.start_server()
    try:
        yield Served(engine, str(server.make_url("")).rstrip("/"), *keys[:1])
    finally:
        await server.close()
