"""Kind l: model loading, as far as it shows in answers.

Each test names the report it retells.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from safetensors.torch import save_file

from tests.cases.serving import serving
from tests.kit.tiny_model import random_weights, tiny_config, write_tiny_model
from tests.kit.tiny_tokenizer import write_tiny_tokenizer
from tests.server.events import post

if TYPE_CHECKING:
    from pathlib import Path

    from radixserve.config import EngineConfig

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
NUM_PADDED = 64


def of(config: EngineConfig, folder: Path) -> EngineConfig:
    return dataclasses.replace(config, model=dataclasses.replace(config.model, model=str(folder)))


async def test_l3_rows_that_pad_the_head_are_never_sampled_nor_told_of(
    tmp_path: Path, engine_config: EngineConfig
) -> None:
    """Though they would win every time (vllm #340)."""
    write_tiny_tokenizer(tmp_path)
    async with serving(of(engine_config, write_tiny_model(tmp_path))) as (engine, _):
        num_known = engine.tokenizer.vocab_size
    vocab_size = num_known + NUM_PADDED
    write_tiny_model(tmp_path, vocab_size=vocab_size)
    weights = random_weights(tiny_config(vocab_size=vocab_size))
    weights["lm_head.weight"][num_known:] = 50 * weights["lm_head.weight"][:NUM_PADDED]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    async with serving(of(engine_config, tmp_path)) as (_, client):
        body: dict[str, Any] = {
            "prompt": ["the tree", "a parrot", "x", "of"],
            "n": 5,
            "seed": 1,
            "temperature": 2,
            "max_tokens": 50,
            "ignore_eos": True,
            "return_token_ids": True,
            "logprobs": 5,
            "return_tokens_as_token_ids": True,
        }
        answer = await post(client, COMPLETIONS, body)
    ids = [token for choice in answer["choices"] for token in choice["token_ids"]]
    assert len(ids) == 1000
    assert max(ids) < num_known
    for choice in answer["choices"]:
        for tops in choice["logprobs"]["top_logprobs"]:
            assert all(int(name.removeprefix("token_id:")) < num_known for name in tops)


async def test_l5_a_base_model_completes_and_says_why_it_does_not_chat(
    tmp_path: Path, engine_config: EngineConfig
) -> None:
    """400 that says how to give a template, and no traceback (sglang #2431)."""
    write_tiny_tokenizer(write_tiny_model(tmp_path), chat_template=None)
    async with serving(of(engine_config, tmp_path)) as (_, client):
        for stream in (False, True):
            body = {"messages": [{"role": "user", "content": "a"}], "stream": stream}
            response = await client.post(CHAT, json=body)
            message = (await response.json())["error"]["message"]
            assert response.status == 400
            assert "chat template" in message
            assert "chat-template" in message or "chat_template" in message
            assert "Traceback" not in message
        await post(client, COMPLETIONS, {"prompt": "a", "max_tokens": 2})
