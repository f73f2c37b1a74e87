"""What several choices for one prompt cost: the prompt once, and a copied block for each."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from radixserve.config import HttpConfig
from radixserve.core.invariants import check
from radixserve.server.app import build_app
from tests.server.events import post, until

if TYPE_CHECKING:
    from radixserve.config import EngineConfig
    from radixserve.core.plan import StepPlan, StepResult
    from radixserve.engine.async_engine import AsyncEngine
    from tests.server.conftest import OpenClient, StartEngine

COMPLETIONS = "/v1/completions"
CHOICES = 8
OUTPUT_LEN = 40
PROMPT = [3 + (37 * i * i + 11 * i) % 317 for i in range(1001)]


class StepLog:
    """What each step of an engine computes, and the blocks in use when it is planned.

    Args:
        engine: Nothing but the entrance of its forward pass is changed.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self.tokens: list[int] = []
        self.used_blocks: list[int] = []
        self._engine = engine
        self._compute = engine.core.compute
        engine.core.compute = self._note  # type: ignore[method-assign]

    def _note(self, plan: StepPlan) -> StepResult:
        stats = self._engine.stats()
        self.tokens.append(plan.num_tokens)
        self.used_blocks.append(stats.num_blocks - stats.free_blocks)
        return self._compute(plan)


async def test_eight_choices_of_a_long_prompt_compute_it_once_and_share_its_blocks(
    start_engine: StartEngine, engine_config: EngineConfig, open_client: OpenClient
) -> None:
    engine = await start_engine(engine_config)
    steps = StepLog(engine)
    client = await open_client(build_app(engine, HttpConfig()))
    body = {"prompt": PROMPT, "n": CHOICES, "temperature": 1.0, "seed": 1, "ignore_eos": True}

    answer = await post(client, COMPLETIONS, {**body, "max_tokens": OUTPUT_LEN})

    size = engine_config.cache.block_size
    prompt_blocks, output_blocks = -(-len(PROMPT) // size), -(-OUTPUT_LEN // size)
    assert max(steps.used_blocks) <= prompt_blocks + CHOICES * (output_blocks + 1)
    # Each choice computes the prompt's last token, to sample from, and all of its own but the last.
    assert sum(steps.tokens) == len(PROMPT) - 1 + CHOICES * OUTPUT_LEN
    assert engine.stats().preemptions == 0
    assert len({choice["text"] for choice in answer["choices"]}) == CHOICES
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def is_idle(engine: AsyncEngine) -> bool:
    """Whether nothing runs or waits, and no block is held."""
    stats = engine.stats()
    return not (stats.num_running or stats.num_waiting or stats.private_blocks)


@pytest.mark.parametrize("fields", [{"n": 6}, {"n": 2, "best_of": 6}, {"beam_width": 6}])
async def test_leaving_a_call_of_several_sequences_ends_them_all(
    fields: dict[str, Any],
    start_engine: StartEngine,
    engine_config: EngineConfig,
    open_client: OpenClient,
) -> None:
    engine = await start_engine(engine_config)
    client = await open_client(build_app(engine, HttpConfig()))
    body = {"prompt": "Once", "max_tokens": 1500, "ignore_eos": True, **fields}
    call = asyncio.create_task(client.post(COMPLETIONS, json=body))
    await until(lambda: engine.stats().num_running == 6)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until(lambda: is_idle(engine))
    check(engine.core.scheduler)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_fits_only_in_part_is_refused_whole(
    stream: bool, start_engine: StartEngine, engine_config: EngineConfig, open_client: OpenClient
) -> None:
    scheduler = dataclasses.replace(engine_config.scheduler, max_queue_len=4)
    engine = await start_engine(dataclasses.replace(engine_config, scheduler=scheduler))
    client = await open_client(build_app(engine, HttpConfig()))
    body = {"prompt": "Once", "n": 5, "max_tokens": 500, "stream": stream, "ignore_eos": True}
    response = await client.post(COMPLETIONS, json=body)
    assert (response.status, (await response.json())["error"]["code"]) == (429, "queue_full")
    await until(lambda: is_idle(engine))
    assert engine.stats().output_tokens == 0
