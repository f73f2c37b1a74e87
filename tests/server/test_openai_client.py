"""OpenAI's own client against a listening server: calls, streams and errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import openai
import pytest
import pytest_asyncio

from radixserve.config import HttpConfig, KeyConfig
from tests.server.conftest import MODEL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from openai.types.chat import ChatCompletionMessageParam

    from tests.server.conftest import ServeShared

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEY = "sk-test"
TURNS: list[ChatCompletionMessageParam] = [{"role": "user", "content": "the parrot said"}]


@pytest_asyncio.fixture(loop_scope="session")
async def url(serve_shared: ServeShared) -> str:
    client = await serve_shared(HttpConfig(keys=KeyConfig(api_keys=(KEY,))))
    return str(client.make_url("/v1"))


@pytest_asyncio.fixture(loop_scope="session")
async def api(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as api:
        yield api


async def test_models(api: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in api.models.list()] == [MODEL]
    assert (await api.models.retrieve(MODEL)).id == MODEL


async def test_a_completion_streams_the_text_of_the_whole(api: openai.AsyncOpenAI) -> None:
    whole = await api.completions.create(model=MODEL, prompt="Once", temperature=0, max_tokens=20)
    events = await api.completions.create(
        model=MODEL, prompt="Once", temperature=0, max_tokens=20, stream=True
    )
    text = "".join([event.choices[0].text async for event in events])
    assert text == whole.choices[0].text
    assert whole.usage is not None
    assert whole.usage.prompt_tokens_details is not None
    assert whole.usage.completion_tokens <= 20


async def test_a_chat_streams_the_text_of_the_whole(api: openai.AsyncOpenAI) -> None:
    whole = await api.chat.completions.create(
        model=MODEL, messages=TURNS, temperature=0, max_completion_tokens=20
    )
    events = await api.chat.completions.create(
        model=MODEL,
        messages=TURNS,
        temperature=0,
        max_completion_tokens=20,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [event async for event in events]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens


async def test_the_streaming_helper_builds_the_whole_answer(api: openai.AsyncOpenAI) -> None:
    free = await api.chat.completions.create(
        model=MODEL, messages=TURNS, temperature=0, max_tokens=30
    )
    text = free.choices[0].message.content or ""
    stop = text[4:7]
    async with api.chat.completions.stream(
        model=MODEL, messages=TURNS, temperature=0, max_tokens=30, stop=stop
    ) as events:
        async for _ in events:
            pass
        answer = await events.get_final_completion()
    assert answer.choices[0].message.content == text[: text.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


async def test_errors_arrive_as_the_clients_own_classes(api: openai.AsyncOpenAI, url: str) -> None:
    with pytest.raises(openai.NotFoundError) as lost:
        await api.completions.create(model="no-such-model", prompt="a")
    assert (lost.value.code, lost.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as bad:
        await api.chat.completions.create(model=MODEL, messages=[], temperature=0)
    assert bad.value.param == "messages"
    async with openai.AsyncOpenAI(base_url=url, api_key="sk-no", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError):
            await stranger.models.list()
