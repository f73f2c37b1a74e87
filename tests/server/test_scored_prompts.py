"""Prompts whose log-probabilities are asked for: in chunks, for several choices, in small pools."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from radixserve.config import HttpConfig
from radixserve.server.app import build_app
from tests.server.events import choices_of, post, stream
from tests.server.nearly import assert_nearly_equal

if TYPE_CHECKING:
    from radixserve.config import EngineConfig
    from tests.server.conftest import Client, OpenClient, StartEngine

COMPLETIONS = "/v1/completions"
PROMPT = [12 + (29 * i * i + 7 * i) % 300 for i in range(90)]
SCORED: dict[str, Any] = {"prompt": PROMPT, "prompt_logprobs": 3, "n": 3, "seed": 1}


async def client_of(
    config: EngineConfig, chunk_len: int, start_engine: StartEngine, open_client: OpenClient
) -> Client:
    """Return a client of a fresh engine that computes prompts in chunks."""
    scheduler = dataclasses.replace(config.scheduler, prefill_chunk_len=chunk_len)
    engine = await start_engine(dataclasses.replace(config, scheduler=scheduler))
    return await open_client(build_app(engine, HttpConfig()))


async def test_chunks_tell_the_same_as_one_piece_once_for_each_choice(
    engine_config: EngineConfig, start_engine: StartEngine, open_client: OpenClient
) -> None:
    told = []
    for chunk_len in (7, 256):
        client = await client_of(engine_config, chunk_len, start_engine, open_client)
        chunks = await stream(client, COMPLETIONS, {**SCORED, "max_tokens": 6})
        for index in range(3):
            first, *others = choices_of(chunks, index)
            told.append(first["prompt_logprobs"])
            assert not any("prompt_logprobs" in part for part in others)
    assert len(told[0]) == len(PROMPT)
    for other in told[1:]:
        assert_nearly_equal(other, told[0])


@pytest.mark.parametrize("fields", [{"echo": True, "logprobs": 2}, {"prompt_logprobs": 2}])
async def test_several_choices_score_their_prompt_once(
    fields: dict[str, Any],
    engine_config: EngineConfig,
    start_engine: StartEngine,
    open_client: OpenClient,
) -> None:
    engine = await start_engine(engine_config)
    client = await open_client(build_app(engine, HttpConfig()))
    computed: list[int] = []
    compute = engine.core.compute

    def note(plan: Any) -> Any:
        computed.append(plan.num_tokens)
        return compute(plan)

    engine.core.compute = note  # type: ignore[method-assign]
    body = {"prompt": PROMPT, "n": 4, "max_tokens": 5, "ignore_eos": True, **fields}
    answer = await post(client, COMPLETIONS, body)
    assert sum(computed) == len(PROMPT) - 1 + 4 * 5
    for choice in answer["choices"][1:]:
        for name in ("prompt_logprobs", "logprobs"):
            known = len(PROMPT) if name == "prompt_logprobs" or "echo" in fields else 0
            first, other = answer["choices"][0].get(name), choice.get(name)
            if isinstance(first, dict):
                first, other = first["token_logprobs"], other["token_logprobs"]
            assert (first or [])[:known] == (other or [])[:known]
