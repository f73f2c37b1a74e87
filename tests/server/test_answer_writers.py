"""Anthropic's message and OpenAI's response, whole and streamed, written from the same deltas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json

from radixserve.engine.request import TextDelta, Usage
from radixserve.server.protocol.messages_blocks import CacheControl
from radixserve.server.protocol.messages_writer import MessageFacts, MessageWriter
from radixserve.server.protocol.responses import parse_responses
from radixserve.server.protocol.responses_writer import ResponseWriter, response_head
from radixserve.text.answer_reader import AnswerFormat
from radixserve.text.tool_calls import find_parser
from radixserve.types import FinishReason
from tests.unit.text.answer_events import pieces_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.text.answer_reader import AnswerReader

ADD = '<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>'
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
CUT = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": "x'
ANSWERS = {
    "": [],
    "Hello.": ["text"],
    f"I add.\n{ADD}\n{NOW}": ["text", "call", "call"],
    f"{ADD}{NOW} Done.": ["call", "call", "text"],
    "<think>So.</think>\nHello.": ["thoughts", "text"],
    f"<think>\nSo.\n</think>\n\n{ADD}": ["thoughts", "call"],
    "<think>So": ["thoughts"],
    CUT: ["call"],
}
CUTS = st.lists(st.integers(0, 200), max_size=20)
USAGE = Usage(prompt_tokens=100, cached_tokens=32, completion_tokens=7)
FACTS = MessageFacts(message_id="msg_1", model="tiny")


def reader() -> AnswerReader:
    style = find_parser("hermes")
    return AnswerFormat(style=style, names=("add", "now"), has_reasoning=True).reader()


def deltas_of(
    pieces: Sequence[str],
    reason: FinishReason = FinishReason.STOP,
    stop_reason: str | int | None = None,
) -> list[TextDelta]:
    """Return a delta for each piece; the last one ends the answer."""
    *others, last = pieces or [""]
    return [
        *(TextDelta(piece, (5,), None, None, USAGE) for piece in others),
        TextDelta(last, (5,), reason, stop_reason, USAGE),
    ]


def message_of(
    deltas: Sequence[TextDelta], facts: MessageFacts = FACTS
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    writer = MessageWriter(facts, reader())
    events = [event for delta in deltas for event in writer.push(delta)]
    return writer.whole(), events


def response_of(deltas: Sequence[TextDelta]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    fields = parse_responses({"input": "hi"})
    head = response_head(fields, response_id="resp_1", created=1, model="tiny")
    writer = ResponseWriter(head, reader())
    events = [event for delta in deltas for event in writer.push(delta)]
    return writer.whole(), events


def rebuilt(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the content that a client makes of a message's events."""
    blocks: list[dict[str, Any]] = []
    arguments = ""
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append(dict(event["content_block"]))
            arguments = ""
        elif event["type"] == "content_block_delta":
            assert event["index"] == len(blocks) - 1
            kind = event["delta"]["type"]
            if kind == "input_json_delta":
                arguments += event["delta"]["partial_json"]
                blocks[-1]["input"] = from_json(arguments, allow_partial=True) if arguments else {}
            else:
                name = kind.removesuffix("_delta")
                blocks[-1][name] += event["delta"][name]
    return blocks


@pytest.mark.parametrize("answer", ANSWERS)
@given(cuts=CUTS)
def test_a_message_streams_what_the_whole_says(answer: str, cuts: list[int]) -> None:
    whole, events = message_of(deltas_of(pieces_of(answer, cuts)))
    kinds = {"text": "text", "call": "tool_use", "thoughts": "thinking"}
    content = [
        {key: value for key, value in block.items() if key != "id"} for block in whole["content"]
    ]
    streamed = [{k: v for k, v in block.items() if k != "id"} for block in rebuilt(events)]
    assert streamed == content
    assert [block["type"] for block in content] == [kinds[name] for name in ANSWERS[answer]]
    assert [events[0]["type"], events[-1]["type"]] == ["message_start", "message_stop"]
    starts = [event for event in events if event["type"] == "content_block_start"]
    stops = [event for event in events if event["type"] == "content_block_stop"]
    assert [event["index"] for event in starts] == [event["index"] for event in stops]


def test_calls_are_told_with_what_was_said_before_them() -> None:
    whole, _ = message_of(deltas_of([f"I add.\n{ADD}\n{NOW}"]))
    text, add, now = whole["content"]
    assert text == {"type": "text", "text": "I add."}
    assert (add["name"], add["input"]) == ("add", {"a": 2})
    assert (now["name"], now["input"]) == ("now", {})
    assert add["id"] != now["id"]
    assert whole["stop_reason"] == "tool_use"


def test_a_call_that_was_cut_has_the_arguments_that_are_complete() -> None:
    whole, _ = message_of(deltas_of([CUT], FinishReason.LENGTH))
    assert whole["content"][0]["input"] == {"a": 2}
    assert whole["stop_reason"] == "max_tokens"


@pytest.mark.parametrize(
    ("reason", "stop", "is_cut", "expected"),
    [
        (FinishReason.STOP, None, False, ("end_turn", None)),
        (FinishReason.STOP, 7, False, ("end_turn", None)),
        (FinishReason.STOP, "END", False, ("stop_sequence", "END")),
        (FinishReason.LENGTH, None, False, ("max_tokens", None)),
        (FinishReason.LENGTH, None, True, ("model_context_window_exceeded", None)),
        (FinishReason.TIMEOUT, None, True, ("max_tokens", None)),
    ],
)
def test_the_end_is_named(
    reason: FinishReason, stop: str | int | None, *, is_cut: bool, expected: tuple[str, str | None]
) -> None:
    facts = MessageFacts(message_id="msg_1", model="tiny", is_cut_by_context=is_cut)
    whole, events = message_of(deltas_of(["Hello."], reason, stop), facts)
    [delta] = [event["delta"] for event in events if event["type"] == "message_delta"]
    assert (whole["stop_reason"], whole["stop_sequence"]) == expected
    assert (delta["stop_reason"], delta["stop_sequence"]) == expected


@pytest.mark.parametrize(
    ("marked_len", "created", "others"), [(0, 0, 68), (20, 0, 68), (80, 48, 20), (100, 68, 0)]
)
def test_each_prompt_token_is_counted_once(marked_len: int, created: int, others: int) -> None:
    mark = CacheControl(type="ephemeral") if marked_len else None
    facts = MessageFacts(message_id="msg_1", model="tiny", marked_len=marked_len, mark=mark)
    usage = message_of(deltas_of(["Hello."]), facts)[0]["usage"]
    assert usage["cache_read_input_tokens"] == 32
    assert usage["cache_creation_input_tokens"] == created
    assert usage["cache_creation"]["ephemeral_5m_input_tokens"] == created
    assert usage["input_tokens"] == others


@pytest.mark.parametrize("answer", ANSWERS)
@given(cuts=CUTS)
def test_a_response_streams_what_the_whole_says(answer: str, cuts: list[int]) -> None:
    whole, events = response_of(deltas_of(pieces_of(answer, cuts)))
    kinds = {"text": "message", "call": "function_call", "thoughts": "reasoning"}
    assert [item["type"] for item in whole["output"]] == [kinds[name] for name in ANSWERS[answer]]
    assert events[-1]["response"] == whole
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for index, item in enumerate(whole["output"]):
        mine = [event for event in events if event.get("output_index") == index]
        text = item["arguments"] if "arguments" in item else item["content"][0]["text"]
        pieces = [event["delta"] for event in mine if event["type"].endswith(".delta")]
        assert "".join(pieces) == text
        assert mine[-1]["type"] == "response.output_item.done"
        assert mine[-1]["item"] == item
        assert {event["item_id"] for event in mine if "item_id" in event} == {item["id"]}


@pytest.mark.parametrize(
    ("reason", "status"), [(FinishReason.STOP, "completed"), (FinishReason.LENGTH, "incomplete")]
)
def test_a_response_says_whether_it_is_complete(reason: FinishReason, status: str) -> None:
    whole, events = response_of(deltas_of(["Hel", "lo."], reason))
    assert whole["status"] == whole["output"][-1]["status"] == status
    assert events[-1]["type"] == f"response.{status}"
    assert whole["usage"]["input_tokens_details"]["cached_tokens"] == 32
