"""What clients see when the forward pass fails, and when the engine itself dies."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from radixserve.config import HttpConfig
from radixserve.errors import BackendError
from radixserve.server.app import build_app
from tests.server.events import parse_events, post

if TYPE_CHECKING:
    from radixserve.config import EngineConfig
    from radixserve.engine.async_engine import AsyncEngine
    from tests.server.conftest import Client, OpenClient, StartEngine

PATH = "/v1/completions"
SHORT = {"prompt": "a", "max_tokens": 2}
LONG = {"prompt": "a", "max_tokens": 2000, "ignore_eos": True}


@pytest.fixture
async def engine(start_engine: StartEngine, engine_config: EngineConfig) -> AsyncEngine:
    return await start_engine(engine_config)


@pytest.fixture
async def client(engine: AsyncEngine, open_client: OpenClient) -> Client:
    return await open_client(build_app(engine, HttpConfig()))


def break_method(
    monkeypatch: pytest.MonkeyPatch, target: object, name: str, error: Exception
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(target, name, fail)


async def test_a_failed_step_fails_its_requests_and_no_others(
    engine: AsyncEngine, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        break_method(broken, engine.core._runner, "execute", BackendError("a secret device"))
        response = await client.post(PATH, json=SHORT)
    text = await response.text()
    assert (response.status, (await response.json())["error"]["code"]) == (500, "backend_error")
    assert "secret" not in text
    assert (await client.get("/health")).status == 200
    await post(client, PATH, SHORT)


async def test_a_step_that_fails_in_mid_stream_is_an_event(
    engine: AsyncEngine, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    response = await client.post(PATH, json={**LONG, "stream": True})
    break_method(monkeypatch, engine.core._runner, "execute", BackendError("a secret device"))
    chunks = parse_events(await response.read())
    assert response.status == 200
    assert chunks[-1]["error"]["code"] == "backend_error"
    assert "secret" not in chunks[-1]["error"]["message"]


async def test_a_dead_engine_is_seen_everywhere(
    engine: AsyncEngine, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await client.post(PATH, json={**LONG, "stream": True})
    break_method(monkeypatch, engine.core, "schedule", ZeroDivisionError("a secret bug"))
    assert parse_events(await running.read())[-1]["error"]["code"] == "engine_dead"
    for path in ("/health", "/ready"):
        response = await client.get(path)
        assert (response.status, (await response.json())["error"]["code"]) == (503, "engine_dead")
    refused = await client.post(PATH, json=SHORT)
    assert (refused.status, (await refused.json())["error"]["code"]) == (503, "engine_dead")
    assert (await client.get("/metrics")).status == 200


async def test_calls_that_arrive_together_are_all_answered(client: Client) -> None:
    async def call(number: int) -> int:
        body = {"messages": [{"role": "user", "content": f"call {number}"}], "max_tokens": 1}
        async with client.post("/v1/chat/completions", json=body) as response:
            await response.read()
            return response.status

    assert set(await asyncio.gather(*(call(number) for number in range(200)))) == {200}
