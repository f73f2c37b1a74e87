"""Tool calls are found in text, however it is cut, and nothing is lost or leaked."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve.errors import ConfigError
from radixserve.text.tool_calls import detect_parser, find_parser
from radixserve.text.tool_calls.hermes import HermesParser
from radixserve.text.tool_calls.llama import LlamaParser
from radixserve.text.tool_calls.mistral import MistralParser
from tests.unit.text.answer_events import joined, numbered_ids, pieces_of, read

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve.text.tool_calls import ToolCallParser

NAMES = frozenset({"add", "f"})


def hermes() -> ToolCallParser:
    return HermesParser(None, numbered_ids())


def llama() -> ToolCallParser:
    return LlamaParser(NAMES, numbered_ids())


def mistral() -> ToolCallParser:
    return MistralParser(None, numbered_ids())


def call(index: int, name: str, arguments: str) -> list[tuple[Any, ...]]:
    return [("call", index, f"id{index}", name), ("args", index, arguments)]


def text(said: str) -> tuple[str, str]:
    return ("text", said)


ADD = '{"a": 2, "b": 3}'
TWO = [*call(0, "add", ADD), *call(1, "f", "{}")]
ADD_TAG = f'<tool_call>\n{{"name": "add", "arguments": {ADD}}}\n</tool_call>'
F_TAG = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
TRICKY = r'{"s": "}] \" </tool_call> \\", "o": {"x": [1, {"y": "{"}]}}'

HERMES: dict[str, tuple[str, list[Any]]] = {
    "one call": (ADD_TAG, call(0, "add", ADD)),
    "two calls": (f"{ADD_TAG}\n{F_TAG}\n", TWO),
    "two calls in one tag": (ADD_TAG.replace("\n</", '\n{"name": "f"}\n</'), TWO),
    "text before and behind": (
        f"Let me see.\n{ADD_TAG}\nDone.",
        [text("Let me see."), *call(0, "add", ADD), text("Done.")],
    ),
    "no tag at the end": (ADD_TAG.removesuffix("</tool_call>"), call(0, "add", ADD)),
    "half a tag at the end": (ADD_TAG.removesuffix("call>"), call(0, "add", ADD)),
    "a brace too few": (ADD_TAG.replace("}}", "}"), call(0, "add", ADD)),
    "a brace too many": (ADD_TAG.replace("}}", "}}}"), call(0, "add", ADD)),
    "no white space": (ADD_TAG.replace("\n", ""), call(0, "add", ADD)),
    "all of JSON in arguments": (ADD_TAG.replace(ADD, TRICKY), call(0, "add", TRICKY)),
    "arguments first": (
        f'<tool_call>{{"arguments": {ADD}, "name": "add"}}</tool_call>',
        call(0, "add", ADD),
    ),
    "arguments written as a string": (
        f'<tool_call>{{"name": "add", "arguments": {json.dumps(ADD)}}}</tool_call>',
        call(0, "add", ADD),
    ),
    "no arguments": ('<tool_call>{"name": "f"}</tool_call>', call(0, "f", "{}")),
    "null for arguments": (
        '<tool_call>{"name": "f", "arguments": null}</tool_call>',
        call(0, "f", "{}"),
    ),
    "more members": (
        f'<tool_call>{{"id": 1, "name": "add", "arguments": {ADD}, "why": "x}}"}}</tool_call>',
        call(0, "add", ADD),
    ),
    "cut in the arguments": (ADD_TAG.partition("3")[0], call(0, "add", '{"a": 2, "b": ')),
    "python for arguments": (
        '<tool_call>{"name": "f", "arguments": {"a": True}}</tool_call>',
        call(0, "f", '{"a": True}'),
    ),
    "arguments that never close": (
        '<tool_call>{"name": "f", "arguments": {"a": [}</tool_call> bye',
        [*call(0, "f", '{"a": [}'), text("bye")],
    ),
    "faulty members behind the arguments": (
        '<tool_call>{"name": "f", "arguments": {}, oops}</tool_call>',
        [*call(0, "f", "{}"), text(", oops}</tool_call>")],
    ),
    "a call in a refused one": (
        f"<tool_call> {ADD_TAG}",
        [text("<tool_call> "), *call(0, "add", ADD)],
    ),
}

LLAMA: dict[str, tuple[str, list[Any]]] = {
    "one call": (f'{{"name": "add", "parameters": {ADD}}}', call(0, "add", ADD)),
    "a type first": (
        f'{{"type": "function", "name": "add", "parameters": {ADD}}}',
        call(0, "add", ADD),
    ),
    "two calls": (
        f'\n{{"name": "add", "parameters": {ADD}}}; {{"name": "f", "parameters": {{}}}}',
        TWO,
    ),
    "two calls on two lines": (
        f'{{"name": "add", "parameters": {ADD}}}\n{{"name": "f", "parameters": {{}}}}',
        TWO,
    ),
    "the tag": (f'<|python_tag|>{{"name": "add", "parameters": {ADD}}}', call(0, "add", ADD)),
    "the tag twice": (
        f'<|python_tag|>{{"name": "add", "parameters": {ADD}}};'
        '<|python_tag|>{"name": "f", "arguments": {}}',
        TWO,
    ),
    "the tag behind text": (
        f'I add. <|python_tag|>{{"name": "add", "parameters": {ADD}}}',
        [text("I add."), *call(0, "add", ADD)],
    ),
    "text behind": (
        f'{{"name": "add", "parameters": {ADD}}}; and then',
        [*call(0, "add", ADD), text("; and then")],
    ),
}

MISTRAL: dict[str, tuple[str, list[Any]]] = {
    "a list": (f'[TOOL_CALLS] [{{"name": "add", "arguments": {ADD}}}]', call(0, "add", ADD)),
    "a list of two": (
        f'[TOOL_CALLS][{{"name": "add", "arguments": {ADD}, "id": "abcdefghi"}}, '
        '{"name": "f", "arguments": {}}]\n',
        TWO,
    ),
    "one object": (f'[TOOL_CALLS]{{"name": "add", "arguments": {ADD}}}', call(0, "add", ADD)),
    "names": (f"[TOOL_CALLS]add[ARGS]{ADD}[TOOL_CALLS]f[ARGS]{{}}", TWO),
    "names without their mark": (f"[TOOL_CALLS]add{ADD}[TOOL_CALLS] f {{}}", TWO),
    "names with ids": (f"[TOOL_CALLS]add[CALL_ID]abcdefghi[ARGS]{ADD}", call(0, "add", ADD)),
    "text before": (f"So: [TOOL_CALLS]add[ARGS]{ADD}", [text("So:"), *call(0, "add", ADD)]),
    "a list cut short": (
        f'[TOOL_CALLS][{{"name": "add", "arguments": {ADD}}}, {{"na',
        [*call(0, "add", ADD), text(', {"na')],
    ),
}

PLAIN: dict[Callable[[], ToolCallParser], list[str]] = {
    hermes: [
        "",
        "   ",
        "Hello. \n",
        "a < b <tool> <tool_cal",
        "<tool_call>",
        "<tool_call>call me</tool_call>",
        '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "argum',
        ' x <tool_call>\n{"name": "f" "arguments": {}}\n</tool_call>\n',
        '<tool_call>{"name": "f", "arguments": ' + "[" * 100_000,
        '{"name": "f", "arguments": {}}',
    ],
    llama: [
        "",
        "\n",
        " Hello.",
        '{"name": "Bob", "parameters": {}}',
        '{"name": "f"}',
        '{"city": "Rome"}',
        ' {"name": "f", "parameters": [1]}',
        "<|python_tag|>print(1)",
        "a <|python",
        'Here: {"name": "f", "parameters": {}}',
        "{",
    ],
    mistral: [
        "",
        "[TOOL_CALLS]",
        "[TOOL_CALLS][]",
        "[TOOL_CALLS] I will not.",
        "[TOOL_CALLS]f[ARGS]",
        "[TOOL_CALLS]f(1){}",
        "[TOOL_CALLS]" + "f" * 300 + "{}",
        "[TOOL_CALLS]f f{}",
        '[{"name": "f", "arguments": {}}]',
        "[TOOL",
    ],
}

CASES = [
    pytest.param(make, said, told, id=f"{make.__name__}: {what}")
    for make, cases in (
        (hermes, HERMES),
        (llama, LLAMA),
        (mistral, MISTRAL),
    )
    for what, (said, told) in cases.items()
]


@pytest.mark.parametrize(("make", "said", "told"), CASES)
def test_calls_are_found(
    make: Callable[[], ToolCallParser], said: str, told: list[tuple[Any, ...]]
) -> None:
    assert read(make(), [said]) == told
    assert read(make(), list(said)) == told


@pytest.mark.parametrize(
    ("make", "said"), [(make, said) for make, texts in PLAIN.items() for said in texts]
)
def test_what_is_no_call_stays_text(make: Callable[[], ToolCallParser], said: str) -> None:
    assert read(make(), [said]) == ([text(said)] if said else [])
    assert read(make(), pieces_of(said, range(0, len(said), 7))) == read(make(), [said])


SHARDS = st.sampled_from(
    [
        "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<tool", "{",
        "}", "[", "]", ",", ";", ":", '"', "\\", "\n", " ", "a", "f",
        '{"name": "f", "arguments": {',
        '{"name": "add", "parameters": {}}', '"name": ', '"f"', "<", "1", ADD, ADD_TAG,
    ]
)  # fmt: skip


@pytest.mark.parametrize("make", [hermes, llama, mistral])
@given(shards=st.lists(SHARDS, max_size=20), cuts=st.lists(st.integers(0, 400), max_size=30))
def test_how_the_text_is_cut_does_not_matter(
    make: Callable[[], ToolCallParser], shards: list[str], cuts: list[int]
) -> None:
    said = "".join(shards)
    told = read(make(), pieces_of(said, cuts))
    assert told == read(make(), [said])
    assert told == read(make(), list(said))


@pytest.mark.parametrize("make", [hermes, llama, mistral])
@given(shards=st.lists(SHARDS, max_size=20))
def test_nothing_is_told_that_was_not_written_and_no_word_is_lost(
    make: Callable[[], ToolCallParser], shards: list[str]
) -> None:
    """Markup and white space around calls go; in an answer without calls everything stays."""
    said = "".join(shards)
    told = read(make(), [said])
    if not any(event[0] == "call" for event in told):
        assert "".join(event[-1] for event in told) == said
    position = 0
    for event in told:
        if event[0] in ("text", "args") and event[-1] != "{}":
            position = said.index(event[-1], position) + len(event[-1])


def test_arguments_go_out_as_they_come() -> None:
    parser = hermes()
    assert joined(parser.push('<tool_call>{"name": "add", "argu')) == []
    assert joined(parser.push('ments": ')) == []
    assert joined(parser.push('{"a": "long')) == call(0, "add", '{"a": "long')
    assert joined(parser.push(' text"')) == [("args", 0, ' text"')]
    assert joined(parser.push("}}")) == [("args", 0, "}")]


def test_text_goes_out_at_once_and_what_may_be_a_call_waits() -> None:
    parser = hermes()
    assert joined(parser.push("Hello <b> ")) == [text("Hello <b>")]
    assert joined(parser.push("and <tool")) == [text(" and")]
    assert joined(parser.push("box>")) == [text(" <toolbox>")]


def test_a_long_line_of_false_openers_takes_linear_work() -> None:
    said = '<tool_call>{"a": "' * 20_000
    assert read(hermes(), [said]) == [text(said)]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("{{ '<tool_call>' }}", "hermes"),
        ("{{ '[TOOL_CALLS]' }}", "mistral"),
        ("{{ '[TOOL_CALLS]' + name + '[ARGS]' }}", "mistral-args"),
        ("{%- if builtin_tools %}{{- '<|python_tag|>' }}", "llama3"),
        ('{"name": function name, "parameters": dictionary of argument name and its', "llama3"),
        ("{{ messages[0].content }}", "hermes"),
    ],
)
def test_a_template_shows_how_its_model_writes_calls(source: str, name: str) -> None:
    assert detect_parser(source) is find_parser(name)


def test_an_unknown_parser_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"hermes, mistral-args, mistral, llama3"):
        find_parser("smoke-signals")


@pytest.mark.parametrize("name", ["hermes", "llama3", "mistral", "mistral-args"])
def test_what_a_grammar_would_force_is_read_back(name: str) -> None:
    style = find_parser(name)
    calls = [("add", ADD), ("f", "{}"), ("f", TRICKY)]
    written = style.between.join(
        style.before_name + f + style.before_arguments + arguments + style.after
        for f, arguments in calls
    )
    events = read(style.parser(["add", "f"]), list(style.first + written + style.last))
    told = [(event[3], after[2]) for event, after in zip(events[::2], events[1::2], strict=True)]
    assert told == calls
    ids = [event[2] for event in events[::2]]
    assert len(set(ids)) == 3
    assert all(len(call_id) == (9 if "mistral" in name else 29) for call_id in ids)
