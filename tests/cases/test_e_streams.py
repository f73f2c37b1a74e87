"""Kind e: streaming.

Each test names the report it retells.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from tests.cases.serving import changed, serving
from tests.kit.engines import until
from tests.kit.scripted_sampler import Script
from tests.server.events import choices_of, parse_events, post, stream, text_of

if TYPE_CHECKING:
    from radixserve.config import EngineConfig
    from tests.server.conftest import Client

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
TURNS = [{"role": "user", "content": "the parrot"}]
SCRIPTED = 77
"""Seed of the requests that say what the test wants."""


def streamed_text(chunks: list[dict[str, Any]], index: int = 0) -> str:
    return "".join(text_of(choice) for choice in choices_of(chunks, index))


@pytest.mark.parametrize("text", ["a🦜b", "中文", "ď", "é🦜", "🦜🦜 中ď."])
async def test_e1_characters_of_several_tokens_arrive_whole(
    text: str, engine_config: EngineConfig
) -> None:
    """No replacement character, nothing lost, nothing late (llama.cpp #4036)."""
    async with serving(engine_config) as (engine, client):
        ids = engine.tokenizer.encode(text)
        assert len(ids) > len(text)
        Script(engine.core, {SCRIPTED: [*ids, 5]})
        body = {"prompt": "x", "seed": SCRIPTED, "max_tokens": len(ids), "ignore_eos": True}

        chunks = await stream(client, COMPLETIONS, body)

        deltas = [text_of(choice) for choice in choices_of(chunks, 0)]
        assert (
            "".join(deltas)
            == text
            == text_of((await post(client, COMPLETIONS, body))["choices"][0])
        )
        assert not any("\N{REPLACEMENT CHARACTER}" in delta for delta in deltas)


@pytest.mark.parametrize(
    ("spoken", "stop", "expected"),
    [
        (" K L M N O", " K L M N", ""),
        (" K L M O P", " K L M N", " K L M O P"),
        (" J K L K L M N O", " K L M N", " J K L"),
        (" K L M", " K L M N", " K L M"),
    ],
)
async def test_e3_nothing_of_a_stop_string_is_sent_before_it_is_known_to_be_none(
    spoken: str, stop: str, expected: str, engine_config: EngineConfig
) -> None:
    """Held while it may become one, sent when it dies or the output ends (vllm #3574)."""
    async with serving(engine_config) as (engine, client):
        ids = engine.tokenizer.encode(spoken)
        assert len(ids) > 2
        Script(engine.core, {SCRIPTED: ids})
        body = {"prompt": "F G H", "seed": SCRIPTED, "max_tokens": len(ids), "ignore_eos": True}
        stopped = {**body, "stop": [stop]}

        chunks = await stream(client, COMPLETIONS, stopped)
        [whole] = (await post(client, COMPLETIONS, stopped))["choices"]

        assert streamed_text(chunks) == text_of(whole) == expected
        free = text_of((await post(client, COMPLETIONS, body))["choices"][0])
        assert free == spoken
        sent = ""
        for choice in choices_of(chunks, 0):
            sent += text_of(choice)
            assert expected.startswith(sent)
        assert whole["finish_reason"] == ("stop" if stop in spoken else "length")


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize(
    ("path", "prompt"), [(COMPLETIONS, {"prompt": "a"}), (CHAT, {"messages": TURNS})]
)
@pytest.mark.parametrize("n", [1, 3])
async def test_e7_every_choice_ends_once_after_all_of_its_text(
    path: str, prompt: dict[str, Any], n: int, client: Client
) -> None:
    """One finish reason for each choice, and nothing after it (sglang PR#8417, vllm #35705)."""
    body = {**prompt, "n": n, "max_tokens": 5, "temperature": 1, "ignore_eos": True}
    chunks = await stream(client, path, body)
    for index in range(n):
        reasons = [choice["finish_reason"] for choice in choices_of(chunks, index)]
        assert [reason for reason in reasons if reason] == ["length"]
        assert reasons[-1] == "length"
        assert text_of(choices_of(chunks, index)[-1]) == ""
        assert streamed_text(chunks, index)


def mixed_body(i: int) -> tuple[str, dict[str, Any]]:
    """Return the i-th of many calls that end in many ways, after prompts of many lengths."""
    prompt = [3 + (i * 37 + at * at) % 300 for at in range(1 + (i * 53) % 180)]
    body: dict[str, Any] = {"prompt": prompt, "max_tokens": 1 + i % 9, "seed": i}
    if i % 5 == 1:
        body |= {"stop": ["e", "t"]}
    if i % 5 == 2:
        body |= {"n": 2}
    if i % 5 == 3:
        body |= {"stream_options": {"include_usage": True}}
    if i % 5 == 4:
        return CHAT, {"messages": TURNS, "max_tokens": 6, "seed": i}
    return COMPLETIONS, body


@pytest.mark.asyncio(loop_scope="session")
async def test_e9_every_stream_ends_with_done_and_closes(client: Client) -> None:
    """200 streams, many at a time; the last event is never lost (vllm-mlx #101)."""

    async def one(i: int) -> None:
        path, body = mixed_body(i)
        response = await client.post(path, json={**body, "stream": True})
        assert response.status == 200
        parse_events(await response.read())  # read() ends only where the response does

    for start in range(0, 200, 40):
        await asyncio.gather(*(one(i) for i in range(start, start + 40)))


async def test_e11_clients_that_never_read_cost_little_memory(engine_config: EngineConfig) -> None:
    """Deltas are merged for whoever is slow; the others are served (mcp-context-forge #1682)."""
    config = changed(engine_config, cache={"num_blocks": 8192}, scheduler={"max_num_seqs": 64})
    async with serving(config) as (engine, client):
        body = {"prompt": "a", "max_tokens": 1500, "ignore_eos": True, "stream": True}
        raw = orjson.dumps(body)
        head = (
            f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(raw)}\r\n\r\n"
        )
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        sockets = []
        for _ in range(50):
            one = socket.socket()
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.setblocking(False)
            await asyncio.get_running_loop().sock_connect(one, ("127.0.0.1", client.port))
            await asyncio.get_running_loop().sock_sendall(one, head.encode() + raw)
            sockets.append(one)
        await until(lambda: engine.stats().output_tokens > 50 * 100)

        answer = await post(client, COMPLETIONS, {"prompt": "the tree", "max_tokens": 5})

        assert answer["usage"]["completion_tokens"] >= 1
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 50 * 1024, f"{grown} KiB more than before"
        for one in sockets:
            one.close()
