"""Kind d: preemption and limits.

Each test names the report it retells.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from radixserve.core import admission
from tests.cases.serving import changed, serving
from tests.server.events import post, text_of

if TYPE_CHECKING:
    from radixserve.config import EngineConfig

COMPLETIONS = "/v1/completions"


def fresh(length: int, seed: int) -> list[int]:
    """Return a prompt that begins like no other."""
    return [3 + seed, *(3 + (seed * 131 + 29 * i * i + i) % 300 for i in range(length - 1))]


async def test_d1_a_prompt_larger_than_the_pool_is_refused_and_holds_nobody_up(
    engine_config: EngineConfig,
) -> None:
    """The context is cut to what the pool holds, and the refusal says so (vllm #35541, #39734)."""
    config = changed(engine_config, cache={"num_blocks": 49})
    async with serving(config) as (engine, client):
        large, small = await asyncio.gather(
            client.post(COMPLETIONS, json={"prompt": fresh(1000, 1), "max_tokens": 4}),
            client.post(COMPLETIONS, json={"prompt": fresh(9, 2), "max_tokens": 4}),
        )
        error = (await large.json())["error"]
        assert (large.status, small.status) == (400, 200)
        assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
        assert str(49 * 16) in error["message"]
        assert engine.info.max_model_len == 49 * 16


async def test_d3_a_lone_request_that_fills_the_pool_ends_by_length(
    engine_config: EngineConfig,
) -> None:
    """Nobody is there to be preempted, and nothing dies (sglang PR#19881, PR#14948)."""
    async with serving(changed(engine_config, cache={"num_blocks": 20})) as (_, client):
        await post(client, COMPLETIONS, {"prompt": fresh(200, 9), "max_tokens": 9})  # evictable
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": "a tree " * 20}],
            "ignore_eos": True,
        }
        answer = await post(client, "/v1/chat/completions", body)
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["total_tokens"] == 20 * 16
        too_much = await client.post(COMPLETIONS, json={"prompt": fresh(160, 1), "max_tokens": 500})
        assert too_much.status == 400
        await post(client, COMPLETIONS, {"prompt": fresh(9, 2), "max_tokens": 4})


@pytest.mark.parametrize("mode", ["recompute", "swap"])
async def test_d5_preempted_requests_return_every_token_once(
    mode: str, engine_config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever had to give way has its whole text, few of them often (vllm #16832, sglang #26248).

    A smaller crowd than the report's; its real size is a test of the core.
    """
    monkeypatch.setattr(admission, "MIN_GROWTH_TOKENS", 0)
    config = changed(
        engine_config,
        cache={"num_blocks": 30, "block_size": 4},
        scheduler={"preemption_mode": mode},
    )
    bodies = [
        {"prompt": fresh(20, i), "max_tokens": 30, "ignore_eos": True, "temperature": 0}
        for i in range(8)
    ]
    async with serving(engine_config) as (_, client):
        alone = [await post(client, COMPLETIONS, body) for body in bodies]
    async with serving(config) as (engine, client):
        crowd = await asyncio.gather(*(post(client, COMPLETIONS, body) for body in bodies))
        preemptions = engine.stats().preemptions
    assert 0 < preemptions <= 5 * len(bodies)
    for found, expected in zip(crowd, alone, strict=True):
        assert found["usage"]["completion_tokens"] == 30
        assert text_of(found["choices"][0]) == text_of(expected["choices"][0])


async def test_d7_a_limit_that_is_passed_is_told_with_its_numbers(
    engine_config: EngineConfig,
) -> None:
    """The message has the true limit and what was asked for (vllm #33418)."""
    config = changed(engine_config, model={"max_model_len": 2048})
    async with serving(config) as (_, client):
        body = {"prompt": "What is the capital of Peru?", "max_tokens": 2044}
        response = await client.post(COMPLETIONS, json=body)
        error = (await response.json())["error"]
        assert (response.status, error["param"]) == (400, "max_tokens")
        assert "2048" in error["message"]
        assert "2044" in error["message"]
