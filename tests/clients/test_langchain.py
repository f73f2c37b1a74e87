"""langchain-openai against the real server: invoke, stream, batch, tools, structured output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest
from pydantic import BaseModel

from radixserve.config import HttpConfig
from radixserve.server.app import build_app
from tests.server.conftest import (  # noqa: F401  fixtures
    engine_config,
    model_folder,
    open_client,
    start_engine,
)

if TYPE_CHECKING:
    from langchain_openai import ChatOpenAI

    from radixserve.config import EngineConfig
    from tests.server.conftest import OpenClient, StartEngine

langchain_openai = pytest.importorskip("langchain_openai", reason="langchain-openai is absent")


class Answer(BaseModel):
    """What the model must say."""

    colour: Literal["red", "green"]
    count: Literal[1, 2, 3]


@pytest.fixture
async def chat(
    start_engine: StartEngine,  # noqa: F811
    engine_config: EngineConfig,  # noqa: F811
    open_client: OpenClient,  # noqa: F811
) -> ChatOpenAI:
    engine = await start_engine(engine_config)
    client = await open_client(build_app(engine, HttpConfig()))
    model: ChatOpenAI = langchain_openai.ChatOpenAI(
        model="tiny",
        base_url=str(client.make_url("/v1")),
        api_key="none",
        temperature=0,
        max_tokens=24,
        max_retries=0,
    )
    return model


async def test_invoke_and_stream_say_the_same(chat: ChatOpenAI) -> None:
    whole = await chat.ainvoke("hello")

    pieces = [piece async for piece in chat.astream("hello")]

    assert "".join(str(piece.content) for piece in pieces) == whole.content
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["output_tokens"] > 0
    assert whole.response_metadata["finish_reason"] in ("stop", "length")


async def test_a_batch_is_answered_in_order(chat: ChatOpenAI) -> None:
    questions = [f"say {number}" for number in range(6)]
    alone = [(await chat.ainvoke(question)).content for question in questions]

    together = await chat.abatch([*questions])

    assert [answer.content for answer in together] == alone


async def test_structured_output_is_parsed(chat: ChatOpenAI) -> None:
    roomy = chat.model_copy(update={"max_tokens": 200})
    structured = roomy.with_structured_output(Answer, method="json_schema")

    answer = await structured.ainvoke("which colour, and how many?")

    assert isinstance(answer, Answer)


async def test_a_tool_that_must_be_called_is_called(chat: ChatOpenAI) -> None:
    with_tools = chat.bind_tools([Answer], tool_choice="Answer", strict=True)

    message = await with_tools.ainvoke("which colour?", max_tokens=128)

    [call] = message.tool_calls
    assert call["name"] == "Answer"
    Answer.model_validate(call["args"])
