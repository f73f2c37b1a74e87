"""Kind a: what users of other servers reported about references and leaks.

Each test names the report it retells.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.cases.serving import at_rest, serving
from tests.kit.engines import until

if TYPE_CHECKING:
    from radixserve.config import EngineConfig


@pytest.mark.parametrize("stream", [True, False])
async def test_a1_nobody_computes_for_a_client_that_has_left(
    stream: bool, engine_config: EngineConfig
) -> None:
    """A closed connection ends its chat within a step or two, in both modes (vllm #54947)."""
    async with serving(engine_config) as (engine, client):
        body = {
            "stream": stream,
            "max_tokens": 2000,
            "ignore_eos": True,
            "messages": [{"role": "user", "content": "count"}],
        }
        call = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        if stream:
            response = await call
            for _ in range(2):
                await response.content.readuntil(b"\n\n")
            response.close()
        else:
            await until(lambda: engine.stats().output_tokens > 2)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call

        await at_rest(engine)

        produced = engine.stats().output_tokens
        assert produced < 2000
        await asyncio.sleep(0.05)
        assert engine.stats().output_tokens == produced


async def test_a5_a_prompt_that_is_given_up_between_its_chunks_leaves_nothing(
    engine_config: EngineConfig,
) -> None:
    """Whoever owns the running chunk may leave; the others are served (sglang-jax PR#1471)."""
    async with serving(engine_config) as (engine, client):
        calls = [
            asyncio.create_task(
                client.post(
                    "/v1/completions",
                    json={"prompt": [3 + i, *([7 + i] * 900)], "max_tokens": 4, "ignore_eos": True},
                )
            )
            for i in range(12)
        ]
        await until(lambda: engine.stats().num_running > 2)
        await until(lambda: engine.core.scheduler.in_flight is not None)
        plan = engine.core.scheduler.in_flight
        assert plan is not None
        engine.core.end(plan.reqs[0].req_id)

        answers = await asyncio.gather(*calls)

        assert sorted(answer.status for answer in answers) == [200] * 11 + [503]
        after = await client.post("/v1/completions", json={"prompt": [5, 6], "max_tokens": 1})
        assert after.status == 200
