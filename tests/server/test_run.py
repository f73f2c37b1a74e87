"""`serve`: the address, and an orderly end by signal."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from radixserve.config import HttpConfig
from radixserve.engine.async_engine import AsyncEngine
from radixserve.errors import ConfigError
from radixserve.server.app import build_app
from radixserve.server.run import serve
from tests.kit.running import running
from tests.server.events import parse_events, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from radixserve.config import EngineConfig
    from tests.server.conftest import OpenClient

LONG = {"prompt": "Once", "max_tokens": 600, "ignore_eos": True, "stream": True}
SHORT = {"prompt": "Once", "max_tokens": 60, "ignore_eos": True, "stream": True}


class Served:
    """A server run by `serve` in this process, and a connection to it."""

    def __init__(self, config: EngineConfig, *, grace_s: float) -> None:
        self.engine = AsyncEngine.from_config(config)
        self._http = HttpConfig(port=0, shutdown_grace_s=grace_s)
        self._urls: asyncio.Queue[str] = asyncio.Queue()

    async def __aenter__(self) -> Served:
        self.task = asyncio.create_task(
            serve(self.engine, self._http, on_ready=self._urls.put_nowait)
        )
        self.session = aiohttp.ClientSession(base_url=await self._urls.get())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()
        if not self.task.done():
            self.stop()
            self.stop()
        await asyncio.wait_for(self.task, timeout=30)

    def stop(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    async def start(self, body: dict[str, Any]) -> aiohttp.ClientResponse:
        """Return a stream whose first event has been sent."""
        return await self.session.post("/v1/completions", json=body)


@pytest.fixture
async def patient(engine_config: EngineConfig) -> AsyncIterator[Served]:
    async with Served(engine_config, grace_s=60) as served:
        yield served


@pytest.fixture
async def hasty(engine_config: EngineConfig) -> AsyncIterator[Served]:
    async with Served(engine_config, grace_s=0) as served:
        yield served


async def test_a_port_in_use_is_one_clear_sentence(engine_config: EngineConfig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        engine = AsyncEngine.from_config(engine_config)
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is in use"):
            await serve(engine, HttpConfig(port=port), on_ready=lambda url: None)


@pytest.mark.parametrize("host", ["203.0.113.7", "a" * 64 + ".example"])
async def test_a_host_that_is_not_ours_is_one_clear_sentence(
    host: str, engine_config: EngineConfig
) -> None:
    engine = AsyncEngine.from_config(engine_config)
    with pytest.raises(ConfigError, match=rf"{host}.* cannot be"):
        await serve(engine, HttpConfig(host=host), on_ready=lambda url: None)


async def test_running_streams_finish_and_new_calls_are_refused(patient: Served) -> None:
    running = await patient.start(SHORT)
    patient.stop()
    await until(lambda: not patient.engine.is_ready)
    refused = await patient.start(SHORT)
    ready = await patient.session.get("/ready")
    assert (refused.status, ready.status) == (503, 503)
    assert (await refused.json())["error"]["code"] == "shutting_down"
    chunks = parse_events(await running.read())
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    await asyncio.wait_for(patient.task, timeout=30)


async def test_after_the_grace_each_stream_gets_an_error_event_and_its_end(hasty: Served) -> None:
    running = [await hasty.start(LONG) for _ in range(3)]
    hasty.stop()
    for response in running:
        chunks = parse_events(await response.read())
        assert chunks[-1]["error"]["code"] == "request_aborted"
        assert "Error" not in chunks[-1]["error"]["message"]
    await asyncio.wait_for(hasty.task, timeout=30)


async def test_a_second_signal_ends_the_grace(patient: Served) -> None:
    running = await patient.start(LONG)
    patient.stop()
    await until(lambda: not patient.engine.is_ready)
    patient.stop()
    assert parse_events(await running.read())[-1]["error"]["code"] == "request_aborted"
    await asyncio.wait_for(patient.task, timeout=30)


async def test_a_stopped_server_is_not_ready_and_refuses_calls(
    engine_config: EngineConfig, open_client: OpenClient
) -> None:
    async with running(engine_config) as engine:
        client = await open_client(build_app(engine, HttpConfig()))
        assert (await client.get("/ready")).status == 200
    ready = await client.get("/ready")
    call = await client.post("/v1/completions", json=SHORT)
    assert (ready.status, call.status) == (503, 503)
    assert (await call.json())["error"]["code"] == "shutting_down"
    assert "Retry-After" in call.headers


async def test_an_idle_server_ends_at_once_and_can_be_started_again(
    engine_config: EngineConfig,
) -> None:
    for _ in range(2):
        async with Served(engine_config, grace_s=60) as served:
            assert (await served.session.get("/health")).status == 200
            served.stop()
            await asyncio.wait_for(served.task, timeout=30)
