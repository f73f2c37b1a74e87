"""Kind b: wrong output when something is cached.

Each test names the report it retells.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.cases.serving import changed, serving
from tests.server.events import parse_events, post, text_of

if TYPE_CHECKING:
    from radixserve.config import EngineConfig

COMPLETIONS = "/v1/completions"


def fresh(length: int, seed: int) -> list[int]:
    """Return a prompt that begins like no other."""
    return [3 + (seed * 131 + 29 * i * i + i) % 300 for i in range(length)]


async def test_b3_a_prompt_of_any_length_can_be_asked_twice(engine_config: EngineConfig) -> None:
    """Whole blocks that are all cached leave one token to compute (nano-vllm #144)."""
    async with serving(changed(engine_config, cache={"block_size": 4})) as (_, client):
        for length in range(1, 4 * 4 + 2):
            body = {"prompt": [3 + length, *fresh(length - 1, length)], "max_tokens": 4}
            body |= {"temperature": 0, "ignore_eos": True}
            cold, warm = [await post(client, COMPLETIONS, body) for _ in range(2)]
            assert warm["choices"] == cold["choices"]
            assert cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
            cached = warm["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert cached == min(length - 1, (length + 3) // 4 * 4) < length


async def test_b9_a_flush_never_hurts_a_running_stream(engine_config: EngineConfig) -> None:
    """A flush while busy and one right after an answer both succeed (sglang PR#12107, #21413)."""
    async with serving(engine_config) as (engine, client):
        body = {"prompt": fresh(50, 1), "max_tokens": 200, "temperature": 0, "ignore_eos": True}
        quiet = await post(client, COMPLETIONS, body)
        call = await client.post(COMPLETIONS, json={**body, "stream": True})
        await call.content.readuntil(b"\n\n")

        assert (await client.post("/cache/flush", json={})).status == 200
        chunks = parse_events(b"data: {}\n\n" + await call.read())[1:]
        again = await post(client, COMPLETIONS, body)

        assert quiet["choices"][0]["text"].endswith(
            "".join(text_of(choice) for chunk in chunks for choice in chunk["choices"])
        )
        assert again["choices"] == quiet["choices"]
        for i in range(100):
            await post(client, COMPLETIONS, {"prompt": fresh(20, i), "max_tokens": 1})
            flushed = await client.post("/cache/flush", json={})
            assert flushed.status == 200
            stats = engine.stats()
            assert stats.free_blocks == stats.num_blocks
        await asyncio.sleep(0)
