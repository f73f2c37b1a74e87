"""Kind g: chat templates.

Each test names the report it retells.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from tests.cases.serving import serving
from tests.kit.tiny_model import write_tiny_model
from tests.kit.tiny_tokenizer import write_tiny_tokenizer
from tests.server.events import post

if TYPE_CHECKING:
    from pathlib import Path

    from radixserve.config import EngineConfig

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
BEGINS_WITH_BOS = (
    "{{ '<|endoftext|>' }}{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
REFUSES_SYSTEM = (
    "{% for m in messages %}{% if m['role'] == 'system' %}"
    "{{ raise_exception('The system role is not supported here.') }}{% endif %}"
    "{% if loop.index0 > 0 and m['role'] == messages[loop.index0 - 1]['role'] %}"
    "{{ raise_exception('Roles must alternate.') }}{% endif %}"
    "{{ m['role'] + ': ' + m['content'] + '\\n' }}{% endfor %}"
)


def with_template(config: EngineConfig, folder: Path, template: str) -> EngineConfig:
    """Return settings of a model whose chat template is this one."""
    write_tiny_tokenizer(write_tiny_model(folder), chat_template=template)
    return dataclasses.replace(config, model=dataclasses.replace(config.model, model=str(folder)))


async def test_g1_a_chat_and_its_rendered_text_have_the_same_ids(
    tmp_path: Path, engine_config: EngineConfig
) -> None:
    """One begin-of-sequence token on every route (sglang PR#888, vllm PR#16976)."""
    messages = [{"role": "user", "content": "the parrot in the tree is there"}]
    async with serving(with_template(engine_config, tmp_path, BEGINS_WITH_BOS)) as (engine, client):
        rendered = engine.chat_template.render(messages)
        offline = engine.chat_template.encode(messages)
        body = {"max_tokens": 20, "ignore_eos": True, "return_token_ids": True}
        chat = await post(client, CHAT, {**body, "messages": messages})
        text = await post(client, COMPLETIONS, {**body, "prompt": rendered})
        chat_ids = chat.get("prompt_token_ids") or chat["choices"][0]["prompt_token_ids"]
        text_ids = text.get("prompt_token_ids") or text["choices"][0]["prompt_token_ids"]
    assert chat_ids == text_ids == offline
    assert chat_ids.count(0) == 1
    assert chat_ids[0] == 0
    assert text["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("roles", "message"),
    [
        (["system", "user"], "The system role is not supported here."),
        (["user", "user"], "Roles must alternate."),
    ],
)
async def test_g5_a_templates_refusal_reaches_the_caller(
    roles: list[str], message: str, stream: bool, tmp_path: Path, engine_config: EngineConfig
) -> None:
    """400 with the template's own words, before anything is sent (mistral.rs #506)."""
    async with serving(with_template(engine_config, tmp_path, REFUSES_SYSTEM)) as (_, client):
        messages = [{"role": role, "content": "a"} for role in roles]
        response = await client.post(CHAT, json={"messages": messages, "stream": stream})
        error = (await response.json())["error"]
        assert response.status == 400
        assert message in error["message"]
        assert (await client.get("/health")).status == 200
        await post(client, CHAT, {"messages": messages[-1:], "max_tokens": 1})
