"""Thoughts are split from the answer, however the text is cut."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve.text.answer_reader import AnswerFormat
from radixserve.text.reasoning import ReasoningSplitter, is_unfinished_reasoning, opens_reasoning
from radixserve.text.tool_calls import find_parser
from tests.unit.text.answer_events import pieces_of, read

CASES: list[tuple[bool, str, list[Any]]] = [
    (False, "<think>\nSo.\n</think>\n\nParis.\n", [("think", "So."), ("text", "Paris.\n")]),
    (False, "\n<think>So.</think>Paris.", [("think", "So."), ("text", "Paris.")]),
    (False, "<think>\n\n</think>\n\nParis.", [("text", "Paris.")]),
    (False, " Paris <think>no</think>", [("text", " Paris <think>no</think>")]),
    (False, "<think>So it", [("think", "So it")]),
    (False, "<think>So it </thin", [("think", "So it </thin")]),
    (False, "<thin", [("text", "<thin")]),
    (False, " \n", [("text", " \n")]),
    (False, "", []),
    (True, "\nSo.\n</think>\nParis.", [("think", "So."), ("text", "Paris.")]),
    (True, "<think>So.</think>Paris.", [("think", "So."), ("text", "Paris.")]),
    (True, "So a < b\n\nand c", [("think", "So a < b\n\nand c")]),
    (True, "</think>Paris </think>", [("text", "Paris </think>")]),
    (True, "<th", [("think", "<th")]),
]


@pytest.mark.parametrize(("is_inside", "said", "told"), CASES)
def test_thoughts_are_split_off(is_inside: bool, said: str, told: list[Any]) -> None:
    assert read(ReasoningSplitter(is_inside=is_inside), [said]) == told
    assert read(ReasoningSplitter(is_inside=is_inside), list(said)) == told


SHARDS = st.sampled_from(["<think>", "</think>", "<th", "</", "\n", " ", "a", "ink>", "<"])


@given(
    is_inside=st.booleans(),
    shards=st.lists(SHARDS, max_size=15),
    cuts=st.lists(st.integers(0, 100), max_size=20),
)
def test_how_the_text_is_cut_does_not_matter(
    is_inside: bool, shards: list[str], cuts: list[int]
) -> None:
    said = "".join(shards)
    told = read(ReasoningSplitter(is_inside=is_inside), pieces_of(said, cuts))
    assert told == read(ReasoningSplitter(is_inside=is_inside), [said])


def test_thoughts_go_out_as_they_come() -> None:
    splitter = ReasoningSplitter(is_inside=True)
    assert [piece.text for piece in splitter.push("Let me")] == ["Let me"]
    assert [piece.text for piece in splitter.push(" see </th")] == [" see"]


@pytest.mark.parametrize(
    ("prompt", "is_inside"),
    [
        ("<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("what is <think>?<|im_end|>\n<|im_start|>assistant\n", False),
    ],
)
def test_the_end_of_the_prompt_tells_where_the_answer_begins(prompt: str, is_inside: bool) -> None:
    assert opens_reasoning(prompt) is is_inside


def test_a_continued_answer_may_be_in_the_middle_of_its_thoughts() -> None:
    assert is_unfinished_reasoning("<think>So it")
    assert not is_unfinished_reasoning("<think>So it is.</think> Par")
    assert not is_unfinished_reasoning("Par")


def test_a_call_in_thoughts_is_a_thought_and_one_behind_them_a_call() -> None:
    tag = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    answers = AnswerFormat(style=find_parser("hermes"), has_reasoning=True)
    told = read(answers.reader(), list(f"<think>{tag}</think>\n{tag}"))
    assert [event[0] for event in told] == ["think", "call", "args"]
    assert told[0] == ("think", tag)


def test_calls_over_the_limit_are_left_out() -> None:
    tag = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    answers = AnswerFormat(style=find_parser("hermes"), max_calls=1)
    reader = answers.reader()
    assert [event[0] for event in read(reader, [tag + tag])] == ["call", "args"]
    assert reader.num_calls == 1
