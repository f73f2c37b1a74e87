"""Kind i: what users of other servers reported about HTTP itself.

Each test names the report it retells.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import sys
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from radixserve.config import (
    CacheConfig,
    EngineConfig,
    HttpConfig,
    KeyConfig,
    ModelConfig,
    SchedulerConfig,
)
from radixserve.engine.async_engine import AsyncEngine
from radixserve.server.app import build_app
from radixserve.server.auth import OPEN_PATHS
from radixserve.server.run import raise_open_file_limit, serve
from tests.kit.engines import StepGate
from tests.kit.running import running
from tests.kit.tiny_model import write_tiny_model
from tests.kit.tiny_tokenizer import write_tiny_tokenizer
from tests.server.conftest import connected
from tests.server.events import parse_events, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from radixserve.core.plan import StepPlan, StepResult
    from tests.server.conftest import Client

MODEL = "tiny"
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
TURNS = [{"role": "user", "content": "the parrot"}]
KEY = "sk-right"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    """Return the settings of an engine over a small random model with a long context."""
    folder = tmp_path_factory.mktemp("model")
    write_tiny_model(folder, max_position_embeddings=16384)
    write_tiny_tokenizer(folder)
    return EngineConfig(
        model=ModelConfig(model=str(folder), served_model_name=MODEL, dtype="float32"),
        cache=CacheConfig(num_blocks=2048),
        scheduler=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=256),
        num_threads=1,
        seed=0,
    )


@asynccontextmanager
async def serving(
    config: EngineConfig, http: HttpConfig | None = None
) -> AsyncIterator[tuple[AsyncEngine, Client]]:
    async with (
        running(config) as engine,
        connected(build_app(engine, http or HttpConfig())) as client,
    ):
        yield engine, client


# I1 · raullenchai/Rapid-MLX PR#730

HALF = '"a\\ud800b"'
TOOL_CALL = (
    '{"role":"assistant","tool_calls":[{"id":"c","type":"function",'
    '"function":{"name":"f","arguments":' + HALF + "}}]}"
)


@pytest.mark.parametrize("stream", ["true", "false"])
@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, f'"messages":[{{"role":"user","content":{HALF}}}]', "messages[0].content"),
        (CHAT, f'"messages":[{{"role":"user","name":{HALF},"content":"a"}}]', "messages[0].name"),
        (
            CHAT,
            f'"messages":[{TOOL_CALL}]',
            "messages[0].tool_calls[0].function.arguments",
        ),
        (CHAT, f'"messages":[{{"role":"user","content":"a"}}],"stop":{HALF}', "stop"),
        (COMPLETIONS, f'"prompt":{HALF}', "prompt"),
        (COMPLETIONS, f'"prompt":["a",{HALF}]', "prompt[1]"),
    ],
)
async def test_i1_half_a_surrogate_pair_is_the_callers_mistake(
    path: str, fields: str, param: str, stream: str, config: EngineConfig
) -> None:
    async with serving(config) as (_, client):
        body = f'{{"model":"{MODEL}",{fields},"stream":{stream}}}'
        headers = {"Content-Type": "application/json"}
        response = await client.post(path, data=body.encode(), headers=headers)
        text = await response.text()
    assert response.status == 400
    assert response.content_type == "application/json"
    assert json.loads(text)["error"]["param"] == param
    assert "Traceback" not in text
    assert "Error:" not in text


# I3 · sgl-project/sglang#31404


async def test_i3_a_model_that_is_not_served_is_404(config: EngineConfig) -> None:
    wrong, right = {"model": "no-such-model"}, {"model": MODEL, "max_tokens": 1}
    async with serving(config) as (_, client):
        for stream in (False, True):
            for path, body in ((COMPLETIONS, {"prompt": "a"}), (CHAT, {"messages": TURNS})):
                response = await client.post(path, json={**body, **wrong, "stream": stream})
                error = (await response.json())["error"]
                assert response.status == 404
                assert (error["param"], error["code"]) == ("model", "model_not_found")
                assert error["message"]
                assert error["type"]
                good = await client.post(path, json={**body, **right, "stream": stream})
                assert good.status == 200
                await good.read()
        assert (await client.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 1})).status == 200
        missing = await client.get("/v1/models/no-such-model")
        assert (missing.status, (await missing.json())["error"]["code"]) == (404, "model_not_found")
        assert (await client.get(f"/v1/models/{MODEL}")).status == 200


# I5 · vllm-project/vllm#18892, sgl-project/sglang#901


async def test_i5_every_registered_route_but_the_probes_asks_for_the_key(
    config: EngineConfig,
) -> None:
    shown: list[list[tuple[str, str]]] = [
        [],
        [("Authorization", "Bearer sk-wrong")],
        [("Authorization", f"Bearer {KEY}x")],
        [("Authorization", f"Bearer {KEY}"), ("Authorization", "Bearer sk-wrong")],
    ]
    async with serving(config, HttpConfig(keys=KeyConfig(api_keys=(KEY,)))) as (_, client):
        for route in client.app.router.routes():
            assert route.resource is not None
            path = route.resource.canonical.replace("{", "").replace("}", "")
            for headers in shown:
                response = await client.request(route.method, path, headers=headers)
                is_open = path in OPEN_PATHS and route.method in ("GET", "HEAD")
                assert (response.status, path) == (200 if is_open else 401, path)
                if not is_open:
                    assert response.headers["WWW-Authenticate"] == "Bearer"
                    if route.method != "HEAD":
                        assert (await response.json())["error"]["message"]
        for value in (f"bearer {KEY}", f"Bearer {KEY} ", f"Bearer  {KEY}"):
            response = await client.get("/v1/models", headers={"Authorization": value})
            assert response.status == 200
    assert {"/health", "/ready"} == OPEN_PATHS


# I7 · sgl-project/sglang PR#1838, vllm-project/vllm#24885


async def test_i7_sigterm_lets_what_was_accepted_finish(config: EngineConfig) -> None:
    urls: asyncio.Queue[str] = asyncio.Queue()
    engine = AsyncEngine.from_config(config)
    http = HttpConfig(port=0, shutdown_grace_s=60)
    task = asyncio.create_task(serve(engine, http, on_ready=urls.put_nowait))
    async with aiohttp.ClientSession(base_url=await urls.get()) as session:
        gate = StepGate(engine.core)
        body = {"prompt": "Once", "max_tokens": 20, "ignore_eos": True, "stream": True}
        calls = [asyncio.create_task(session.post(COMPLETIONS, json=body)) for _ in range(16)]
        await gate.let_in()
        await until(lambda: engine.stats().num_running + engine.stats().num_waiting == 16)
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: not engine.is_ready)
        late = await session.post(COMPLETIONS, json=body)
        ready = await session.get("/ready")
        alive = await session.get("/health")
        gate.open()
        raw = [await (await call).read() for call in calls]
    await asyncio.wait_for(task, timeout=60)
    assert (late.status, ready.status, alive.status) == (503, 503, 200)
    assert "Retry-After" in late.headers
    finished = [parse_events(each)[-1]["choices"][0]["finish_reason"] for each in raw]
    assert finished == ["length"] * 16


async def test_i7_a_second_signal_ends_a_process_at_once_and_its_status_is_0(
    config: EngineConfig,
) -> None:
    flags = ["--model", config.model.model, "--port", "0", "--num-blocks", "64"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "radixserve", "serve", *flags, "--log-level", "warning"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        line = (await process.stdout.readline()).decode()
        url = line.split(" at ")[1].strip()
        body = {"prompt": "Once", "max_tokens": 900, "ignore_eos": True, "stream": True}
        async with aiohttp.ClientSession() as session:
            response = await session.post(f"{url}/completions", json=body)
            process.terminate()
            while (await session.get(url.replace("/v1", "/ready"))).status == 200:
                pass
            process.terminate()
            assert (await response.read()).endswith(b"data: [DONE]\n\n")
        assert await asyncio.wait_for(process.wait(), timeout=60) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


# I9 · vllm-project/vllm#1026


async def test_i9_a_long_prompt_stops_no_running_stream(config: EngineConfig) -> None:
    loop_thread = threading.get_ident()
    threads: list[int] = []
    plans: list[dict[str, int]] = []
    async with serving(config) as (engine, client):
        encode, execute = engine.tokenizer.encode, engine.core._runner.execute

        def watched_encode(text: str, **options: Any) -> list[int]:
            threads.append(threading.get_ident())
            return encode(text, **options)

        def watched_execute(plan: StepPlan) -> StepResult:
            plans.append({row.req_id: row.extend_len for row in plan.reqs})
            return execute(plan)

        engine.tokenizer.encode = watched_encode  # type: ignore[method-assign]
        engine.core._runner.execute = watched_execute  # type: ignore[method-assign]
        body = {"prompt": [7], "max_tokens": 4000, "ignore_eos": True, "stream": True}
        streams = [await client.post(COMPLETIONS, json=body) for _ in range(4)]
        threads.clear()
        plans.clear()
        long = await client.post(COMPLETIONS, json={"prompt": "Zq " * 4500, "max_tokens": 1})
        usage = (await long.json())["usage"]
        for response in streams:
            response.close()
    assert usage["prompt_tokens"] >= 12_000
    assert threads
    assert loop_thread not in threads
    chunks = [plan for plan in plans if max(plan.values(), default=0) > 1]
    assert len(chunks) >= usage["prompt_tokens"] // 256
    # Each step that computed a part of the long prompt computed a token of each stream as well.
    assert all(sorted(plan.values())[:-1] == [1] * 4 for plan in chunks)


# I11 · ray-project/ray#54070


@pytest.mark.usefixtures("many_open_files")
async def test_i11_a_crowd_is_answered_and_the_health_check_with_it(config: EngineConfig) -> None:
    limited = dataclasses.replace(
        config, scheduler=dataclasses.replace(config.scheduler, max_queue_len=500)
    )
    async with serving(limited) as (engine, client):
        before = len(os.listdir("/proc/self/fd"))
        gate = StepGate(engine.core)
        body = {"messages": TURNS, "max_tokens": 1}
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as crowd:
            url = str(client.make_url(CHAT))
            calls = [asyncio.create_task(_ask(crowd, url, body)) for _ in range(1280)]
            # No step can end while the queue fills up: the server at its worst.
            await until(lambda: sum(call.done() for call in calls) >= 1280 - 500 - 8)
            health = await client.get("/health")
            assert health.status == 200
            gate.open()
            answers = await asyncio.gather(*calls)
        await until(lambda: len(os.listdir("/proc/self/fd")) <= before + 2)
    statuses = [status for status, _, _ in answers]
    assert set(statuses) == {200, 429}
    assert statuses.count(200) >= 500
    for status, headers, answer in answers:
        if status == 429:
            assert int(headers["Retry-After"]) >= 1
            assert answer["error"]["code"] == "queue_full"


@pytest.fixture
def many_open_files() -> None:
    raise_open_file_limit()


async def _ask(session: aiohttp.ClientSession, url: str, body: Any) -> tuple[int, Any, Any]:
    async with session.post(url, json=body) as response:
        return response.status, response.headers, await response.json()


# I13 · ikawrakow/ik_llama.cpp PR#1303


@pytest.mark.parametrize(
    "prompts", [["Hello", "Goodbye", "Test"], [[5, 6, 7], [8, 9], [10]]], ids=["text", "ids"]
)
async def test_i13_each_prompt_and_sample_has_an_index_of_its_own(
    prompts: list[Any], config: EngineConfig
) -> None:
    body = {"max_tokens": 1, "temperature": 0, "ignore_eos": True}
    async with serving(config) as (_, client):
        singles = [await _post(client, {**body, "prompt": prompt}) for prompt in prompts]
        whole = await _post(client, {**body, "prompt": prompts, "n": 2})
        fields = {"prompt": prompts, "n": 2, "stream": True}
        asked = {"stream_options": {"include_usage": True}}
        response = await client.post(COMPLETIONS, json=body | fields | asked)
        chunks = parse_events(await response.read())
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3, 4, 5]
    expected = [single["choices"][0]["text"] for single in singles for _ in range(2)]
    assert [choice["text"] for choice in whole["choices"]] == expected
    streamed: dict[int, str] = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        streamed[choice["index"]] = streamed.get(choice["index"], "") + choice["text"]
    assert streamed == dict(enumerate(expected))
    usages = [whole["usage"], next(chunk["usage"] for chunk in chunks if chunk.get("usage"))]
    for usage in usages:
        assert usage["prompt_tokens"] == sum(each["usage"]["prompt_tokens"] for each in singles)
        assert usage["completion_tokens"] == 6


async def _post(client: Client, body: dict[str, Any]) -> dict[str, Any]:
    response = await client.post(COMPLETIONS, json=body)
    answer = await response.json()
    assert response.status == 200, answer
    return dict(answer)
