"""One message, whole and as a stream, written from the same deltas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from radixserve.engine.request import TextDelta, Usage
from radixserve.server.protocol.chat import parse_chat
from radixserve.server.protocol.chat_writer import ChatShape, ChatWriter
from radixserve.server.protocol.logprobs import TokenNames
from radixserve.text.answer_reader import AnswerFormat
from radixserve.text.tokenizer import Tokenizer
from radixserve.text.tool_calls import find_parser
from radixserve.types import FinishReason, TokenLogprob
from tests.unit.text.answer_events import pieces_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ADD = '<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>'
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("add", "now")]
ANSWERS = [
    "",
    "Hello.",
    " \n",
    f"I add.\n{ADD}\n{NOW}",
    f"{ADD}{NOW} Done.",
    "<think>So.</think>\nHello.",
    f"<think>\nSo.\n</think>\n\n{ADD}",
    "<think>So",
    "<tool_call>no</tool_call>",
    '<tool_call>{"name": "add", "arguments": {"a": ',
]


@pytest.fixture(scope="module")
def names(model_folder: Path) -> TokenNames:
    return TokenNames(Tokenizer.from_folder(model_folder))


def writer_of(names: TokenNames, **fields: Any) -> ChatWriter:
    asked = parse_chat({"messages": [{"role": "user", "content": "hi"}], "tools": TOOLS, **fields})
    use = asked.tool_use
    text_format = AnswerFormat(
        style=find_parser("hermes"), names=use.names, max_calls=use.max_calls, has_reasoning=True
    )
    shape = ChatShape(
        names=names, format=text_format, tool_use=use, num_logprobs=asked.num_logprobs
    )
    return shape.writer(0)


def deltas_of(pieces: Sequence[str], reason: FinishReason = FinishReason.STOP) -> list[TextDelta]:
    """Return a delta for each piece, with two tokens and their log-probabilities."""
    pieces = pieces or [""]
    usage = Usage(1, 0, 1)
    return [
        TextDelta(
            piece,
            (5, 6),
            reason if place == len(pieces) - 1 else None,
            None,
            usage,
            tuple(TokenLogprob(token, -1.0, 1, ((token, -1.0),)) for token in (5, 6)),
        )
        for place, piece in enumerate(pieces)
    ]


def run(writer: ChatWriter, deltas: Sequence[TextDelta]) -> list[dict[str, Any]]:
    return [chunk for delta in deltas for chunk in writer.push(delta)]


def rebuilt(chunks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the choice that OpenAI's own client makes of a stream."""
    head = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m"}
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    for chunk in chunks:
        list(state.handle_chunk(ChatCompletionChunk.model_validate({**head, "choices": [chunk]})))
    choice = state.current_completion_snapshot.choices[0].to_dict()
    for call in choice["message"].get("tool_calls") or []:  # type: ignore[attr-defined]
        call.pop("index")
        call["function"].pop("parsed_arguments")
    return dict(choice)


@given(answer=st.sampled_from(ANSWERS), cuts=st.lists(st.integers(0, 200), max_size=12))
def test_the_stream_adds_up_to_the_whole(names: TokenNames, answer: str, cuts: list[int]) -> None:
    writer = writer_of(names, logprobs=True, top_logprobs=1)
    chunks = run(writer, deltas_of(pieces_of(answer, cuts)))
    whole = writer.whole()
    made = rebuilt(chunks)
    said = {key: value for key, value in whole["message"].items() if value is not None}
    told = {key: value for key, value in made["message"].items() if value is not None}
    told.pop("parsed", None)
    assert told == said
    assert made["finish_reason"] == whole["finish_reason"]
    assert made["logprobs"]["content"] == whole["logprobs"]["content"]
    assert len(whole["logprobs"]["content"]) == 2 * max(1, len(pieces_of(answer, cuts)))


@pytest.mark.parametrize("answer", ANSWERS)
def test_the_role_comes_first_and_the_finish_reason_last_and_alone(
    names: TokenNames, answer: str
) -> None:
    first, *middle, last = run(writer_of(names), deltas_of(list(answer)))
    assert first["delta"]["role"] == "assistant"
    assert last["delta"] == {}
    assert last["finish_reason"] in ("stop", "tool_calls")
    assert all("role" not in chunk["delta"] for chunk in middle)
    assert all(chunk["finish_reason"] is None for chunk in (first, *middle))


def test_parallel_calls_keep_their_own_index_and_tell_their_name_once(names: TokenNames) -> None:
    """Source: sgl-project/sglang#5661, #6310."""
    writer = writer_of(names)
    chunks = run(writer, deltas_of(list(f"I add.\n{ADD}\n{NOW}")))
    parts = [part for chunk in chunks for part in chunk["delta"].get("tool_calls", [])]
    heads = [part for part in parts if "id" in part]
    assert [(part["index"], part["function"]["name"]) for part in heads] == [(0, "add"), (1, "now")]
    assert all(part["type"] == "function" for part in heads)
    assert [part["index"] for part in parts] == sorted(part["index"] for part in parts)
    whole = writer.whole()
    assert whole["finish_reason"] == "tool_calls"
    assert whole["message"]["content"] == "I add."
    first, second = whole["message"]["tool_calls"]
    assert first["id"] != second["id"]
    assert first["function"] == {"name": "add", "arguments": '{"a": 2}'}
    assert second["function"] == {"name": "now", "arguments": "{}"}


def test_an_answer_of_calls_alone_has_no_content(names: TokenNames) -> None:
    writer = writer_of(names)
    chunks = run(writer, deltas_of([ADD]))
    assert chunks[0]["delta"] == {"role": "assistant", "content": None}
    assert writer.whole()["message"]["content"] is None
    assert writer.whole()["message"]["refusal"] is None


def test_thoughts_stand_apart(names: TokenNames) -> None:
    writer = writer_of(names)
    chunks = run(writer, deltas_of(list("<think>So.</think>\nHi")))
    assert "".join(chunk["delta"].get("reasoning_content", "") for chunk in chunks) == "So."
    message = writer.whole()["message"]
    assert (message["reasoning_content"], message["content"]) == ("So.", "Hi")


def test_a_second_call_is_left_out_where_one_is_allowed(names: TokenNames) -> None:
    writer = writer_of(names, parallel_tool_calls=False)
    run(writer, deltas_of([ADD, NOW]))
    assert len(writer.whole()["message"]["tool_calls"]) == 1


def test_calls_cut_short_by_the_length_end_with_that(names: TokenNames) -> None:
    writer = writer_of(names)
    run(writer, deltas_of([ADD[:-20]], FinishReason.LENGTH))
    assert writer.whole()["finish_reason"] == "length"


def test_log_probabilities_have_the_shape_of_openai(names: TokenNames) -> None:
    writer = writer_of(names, logprobs=True, top_logprobs=1)
    run(writer, deltas_of(["Hi"]))
    logprobs = writer.whole()["logprobs"]
    assert logprobs["refusal"] is None
    entry = logprobs["content"][0]
    assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}
    assert [set(top) for top in entry["top_logprobs"]] == [{"token", "logprob", "bytes"}]


def test_without_being_asked_for_there_are_no_log_probabilities(names: TokenNames) -> None:
    writer = writer_of(names)
    chunks = run(writer, deltas_of(["Hi"]))
    assert all(chunk["logprobs"] is None for chunk in (*chunks, writer.whole()))
