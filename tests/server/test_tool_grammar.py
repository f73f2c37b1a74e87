"""What a grammar lets an answer be, for each way in which tools are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from radixserve.engine.grammars import ANY_JSON_OBJECT, Grammars, RegexSpec
from radixserve.errors import InvalidRequestError, UnsupportedGrammarError
from radixserve.server.protocol.chat import parse_chat
from radixserve.server.protocol.tool_grammar import grammar_with_tools
from radixserve.text.tokenizer import Tokenizer
from radixserve.text.tool_calls import find_parser

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from radixserve.engine.grammars import GrammarSpec

ADD: dict[str, Any] = {
    "name": "add",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    },
}
NOW: dict[str, Any] = {"name": "now"}
STRICT = {**ADD, "strict": True}
NAMED = {"type": "function", "function": {"name": "now"}}

HERMES_ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>'
HERMES_NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
LLAMA_ADD = '{"name": "add", "parameters": {"a": 2}}'
MISTRAL_ADD = '{"name": "add", "arguments": {"a": 2}}'


def spec_of(
    *functions: dict[str, Any],
    style: str = "hermes",
    text: GrammarSpec | None = None,
    **fields: Any,
) -> GrammarSpec | None:
    tools = [{"type": "function", "function": function} for function in functions]
    asked = parse_chat({"messages": [{"role": "user", "content": "a"}], "tools": tools, **fields})
    return grammar_with_tools(asked.tool_use, find_parser(style), text)


@pytest.fixture(scope="module")
def allows(model_folder: Path) -> Callable[[GrammarSpec | None, str], bool]:
    """Return a function that says whether a text is a whole output under a spec."""
    tokenizer = Tokenizer.from_folder(model_folder)
    grammars = Grammars(tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)

    def is_allowed(spec: GrammarSpec | None, text: str) -> bool:
        assert spec is not None
        state = grammars.compile(spec).start()
        return state.accept(tokenizer.encode(text, add_special_tokens=False)) and state.may_end

    return is_allowed


@pytest.mark.parametrize(
    ("fields", "text", "is_allowed"),
    [
        ({}, HERMES_ADD, True),
        ({}, f"{HERMES_ADD}\n{HERMES_NOW}\n{HERMES_ADD}", True),
        ({}, "", False),
        ({}, "Hello", False),
        ({}, f"{HERMES_ADD} Done.", False),
        ({}, HERMES_ADD.replace("add", "sub"), False),
        ({}, HERMES_ADD.replace("2", '"2"'), False),
        ({}, HERMES_NOW.replace("{}", '{"x": 1}'), False),
        ({"parallel_tool_calls": False}, HERMES_ADD, True),
        ({"parallel_tool_calls": False}, f"{HERMES_ADD}\n{HERMES_NOW}", False),
        ({"tool_choice": NAMED}, HERMES_NOW, True),
        ({"tool_choice": NAMED}, HERMES_ADD, False),
        ({"tool_choice": NAMED}, f"{HERMES_NOW}\n{HERMES_NOW}", False),
        ({"style": "llama3"}, LLAMA_ADD, True),
        ({"style": "llama3"}, f"{LLAMA_ADD}; {LLAMA_ADD}", True),
        ({"style": "mistral"}, f"[TOOL_CALLS][{MISTRAL_ADD}]", True),
        ({"style": "mistral"}, f"[TOOL_CALLS][{MISTRAL_ADD}, {MISTRAL_ADD}]", True),
        ({"style": "mistral"}, MISTRAL_ADD, False),
        ({"style": "mistral-args"}, '[TOOL_CALLS]add[ARGS]{"a": 2}[TOOL_CALLS]now[ARGS]{}', True),
    ],
)
def test_a_demanded_call_is_all_that_may_come(
    allows: Callable[[GrammarSpec | None, str], bool],
    fields: dict[str, Any],
    text: str,
    is_allowed: bool,
) -> None:
    assert allows(spec_of(ADD, NOW, **{"tool_choice": "required", **fields}), text) is is_allowed


@pytest.mark.parametrize(
    ("text", "is_allowed"),
    [
        ('{"x": 1}', True),
        (HERMES_ADD, True),
        (f"{HERMES_ADD}\n{HERMES_ADD}", False),
        ("Hello", False),
        (HERMES_ADD.replace("2", "true"), False),
    ],
)
def test_beside_tools_a_text_of_json_is_one_call_or_that_json(
    allows: Callable[[GrammarSpec | None, str], bool], text: str, is_allowed: bool
) -> None:
    assert allows(spec_of(ADD, text=ANY_JSON_OBJECT), text) is is_allowed


@pytest.mark.parametrize(
    ("text", "is_allowed"),
    [
        ("", True),
        ("Hello <tool> {", True),
        (HERMES_ADD, True),
        (f"I add.\n{HERMES_ADD}\n{HERMES_ADD} Done.", True),
        (HERMES_ADD.replace("2", "true"), False),
        ("<tool_call>what?", False),
        (f"I add.\n{HERMES_NOW}", True),
    ],
)
def test_strict_functions_hold_calls_in_free_text_to_their_schemas(
    allows: Callable[[GrammarSpec | None, str], bool], text: str, is_allowed: bool
) -> None:
    assert allows(spec_of(STRICT, NOW), text) is is_allowed


def test_without_demands_there_is_no_grammar() -> None:
    assert spec_of(ADD, NOW) is None
    assert spec_of(STRICT, style="llama3") is None
    assert spec_of(STRICT, tool_choice="none") is None


def test_a_demanded_call_leaves_no_text_to_be_held_to_anything() -> None:
    text = RegexSpec("a")
    assert spec_of(ADD, tool_choice="required", text=text) == spec_of(ADD, tool_choice="required")
    assert spec_of(ADD, tool_choice="none", text=text) == text


def test_a_text_that_calls_cannot_stand_beside_is_refused() -> None:
    with pytest.raises(InvalidRequestError) as refused:
        spec_of(ADD, text=RegexSpec("a"))
    assert refused.value.param == "tools"


def test_a_schema_that_cannot_be_enforced_is_refused(
    allows: Callable[[GrammarSpec | None, str], bool],
) -> None:
    wrong = {"name": "f", "parameters": {"type": "object", "properties": {"x": "y"}}}
    with pytest.raises(UnsupportedGrammarError):
        allows(spec_of(wrong, tool_choice="required"), "")
