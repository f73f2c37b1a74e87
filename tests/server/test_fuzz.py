"""Random bodies on every route: no answer blames the server, and nothing is left behind."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radixserve.config import HttpConfig
from radixserve.server.app import build_app
from tests.cases.serving import at_rest, changed
from tests.kit.running import running
from tests.server.bodies import MESSAGES, Call, calls
from tests.server.conftest import connected

if TYPE_CHECKING:
    from radixserve.config import EngineConfig
    from tests.server.conftest import Client

CALLS_AT_ONCE = 8


async def send(client: Client, call: Call) -> None:
    """Send a call and check that the answer is one."""
    headers = {"Content-Type": "application/json"}
    response = await client.post(call.path, data=call.raw, headers=headers)
    raw = await response.read()
    told = f"{call.path} {call.raw!r} -> {response.status} {raw[:2000]!r}"
    assert response.status < 500, told
    if response.content_type == "text/event-stream":
        assert response.status == 200, told
        check_events(raw, told)
        return
    answer = orjson.loads(raw)
    if response.status == 200:
        assert isinstance(answer, dict | list), told
        assert not isinstance(answer, dict) or not answer.get("error"), told
    else:
        check_error(answer, call.path, told)


def check_error(answer: dict[str, Any], path: str, told: str) -> None:
    error = answer["error"]
    assert error["message"], told
    assert "Traceback" not in error["message"], told
    if path.startswith(MESSAGES):
        assert answer["type"] == "error", told
        assert error["type"].endswith(("_error", "_too_large")), told
    else:
        assert set(error) == {"message", "type", "param", "code"}, told
        assert error["type"] != "internal_server_error", told
        assert error["code"], told


def check_events(raw: bytes, told: str) -> None:
    """Every event is JSON, none says that the server failed, and the stream has an end."""
    assert raw.endswith(b"\n\n"), told
    for event in raw[:-2].split(b"\n\n"):
        lines = event.split(b"\n")
        data = [line.removeprefix(b"data: ") for line in lines if line.startswith(b"data: ")]
        assert len(data) == 1, told
        if data[0] == b"[DONE]":
            continue
        body = orjson.loads(data[0])
        error = body.get("error") if isinstance(body, dict) else None
        assert not error or error["type"] not in ("internal_server_error", "api_error"), told


def fuzz(config: EngineConfig, *, num_bodies: int) -> None:
    """Send bodies, some at a time, to one server; it is at rest after each handful."""
    small = changed(
        config,
        model={"max_model_len": 240},
        cache={"num_blocks": 64, "block_size": 4},
        scheduler={"max_num_seqs": 8, "max_num_batched_tokens": 64},
    )
    with asyncio.Runner() as runner:
        engine_context = running(small)
        engine = runner.run(engine_context.__aenter__())
        client_context = connected(build_app(engine, HttpConfig()))
        client = runner.run(client_context.__aenter__())

        async def one_handful(handful: list[Call]) -> None:
            await asyncio.gather(*(send(client, call) for call in handful))
            assert engine.is_ready
            await at_rest(engine)

        @settings(
            max_examples=num_bodies // CALLS_AT_ONCE,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        )
        @given(st.lists(calls(), min_size=CALLS_AT_ONCE, max_size=CALLS_AT_ONCE))
        def run(handful: list[Call]) -> None:
            runner.run(one_handful(handful))

        try:
            run()
        finally:
            runner.run(client_context.__aexit__(None, None, None))
            runner.run(engine_context.__aexit__(None, None, None))


def test_a_few_random_bodies_are_answered(engine_config: EngineConfig) -> None:
    fuzz(engine_config, num_bodies=160)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_five_thousand_random_bodies_are_answered(engine_config: EngineConfig) -> None:
    fuzz(engine_config, num_bodies=5000)
