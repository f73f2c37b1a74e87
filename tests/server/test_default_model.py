"""The server with the default model: an answer that makes sense, whole and as a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from radixserve.config import CacheConfig, EngineConfig, HttpConfig, ModelConfig
from radixserve.models.cache_folder import is_complete
from radixserve.models.default_model import default_model_folder
from radixserve.server.app import build_app
from tests.server.events import choices_of, post, stream, text_of

if TYPE_CHECKING:
    from tests.server.conftest import Client, OpenClient, StartEngine

pytestmark = pytest.mark.model
CHAT = "/v1/chat/completions"
QUESTION = {"role": "user", "content": "What is the capital of France? Answer in one sentence."}


@pytest.fixture
async def client(start_engine: StartEngine, open_client: OpenClient) -> Client:
    folder = default_model_folder()
    if not is_complete(folder):
        pytest.skip(f"the default model's weights are not in {folder}: run 'radixserve pull'")
    model = ModelConfig(model=str(folder), dtype="float32")
    cache = CacheConfig(num_blocks=64)
    engine = await start_engine(EngineConfig(model=model, cache=cache, num_threads=2))
    return await open_client(build_app(engine, HttpConfig()))


async def test_a_conversation_streams_what_it_answers_and_reuses_its_first_turn(
    client: Client,
) -> None:
    body = {"messages": [QUESTION], "temperature": 0, "max_tokens": 32}
    whole = await post(client, CHAT, body)
    chunks = await stream(client, CHAT, body)
    [choice] = whole["choices"]
    assert "Paris" in text_of(choice)
    assert choice["finish_reason"] == "stop"
    assert "".join(map(text_of, choices_of(chunks, 0))) == text_of(choice)

    answer = {"role": "assistant", "content": text_of(choice)}
    again = {"role": "user", "content": "And of Italy?"}
    second = await post(client, CHAT, {**body, "messages": [QUESTION, answer, again]})
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= whole["usage"]["prompt_tokens"] - 1
    assert cached < second["usage"]["prompt_tokens"]
