"""What a request says of tools: checked, told to the template, and what follows from it."""

from __future__ import annotations

from typing import Any

import pytest

from radixserve.errors import InvalidRequestError
from radixserve.server.protocol.chat import parse_chat
from radixserve.server.protocol.tools import MAX_TOOLS, MAX_TOOLS_LEN

USER = {"role": "user", "content": "hi"}
ADD: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
        "strict": True,
    },
}
NOW: dict[str, Any] = {"type": "function", "function": {"name": "now"}}
NAMED = {"type": "function", "function": {"name": "now"}}

DEEP: dict[str, Any] = {}
for _ in range(400):
    DEEP = {"properties": {"x": DEEP}}


def function(**fields: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "f", **fields}}]


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": [USER], **fields}


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"tools": 5}, "tools", "invalid_type"),
        ({"tools": [5]}, "tools[0]", "invalid_type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "missing_required_parameter"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0].type", "invalid_value"),
        ({"tools": function(name="a b")}, "tools[0].function.name", "invalid_value"),
        ({"tools": function(name="")}, "tools[0].function.name", "invalid_value"),
        ({"tools": function(name="f" * 65)}, "tools[0].function.name", "invalid_value"),
        ({"tools": function(name="f\n")}, "tools[0].function.name", "invalid_value"),
        ({"tools": function(parameters=[])}, "tools[0].function.parameters", "invalid_type"),
        (
            {"tools": function(parameters={"type": "array"})},
            "tools[0].function.parameters",
            "invalid_type",
        ),
        ({"tools": function(parameters=DEEP)}, "tools[0].function.parameters", "invalid_value"),
        ({"tools": function(colour=1)}, "tools[0].function.colour", "unknown_parameter"),
        ({"tools": [NOW, NOW]}, "tools[1].function.name", "invalid_value"),
        ({"tools": [NOW] * (MAX_TOOLS + 1)}, "tools", "invalid_value"),
        ({"tools": function(description="x" * MAX_TOOLS_LEN)}, "tools", "invalid_value"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tool_choice": "maybe", "tools": [NOW]}, "tool_choice", "invalid_value"),
        ({"tool_choice": 5, "tools": [NOW]}, "tool_choice", "invalid_type"),
        ({"tool_choice": NAMED}, "tool_choice.function.name", "invalid_value"),
        ({"tool_choice": NAMED, "tools": [ADD]}, "tool_choice.function.name", "invalid_value"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls", "invalid_type"),
        ({"functions": [{"name": "f"}]}, "functions", "unsupported_parameter"),
        ({"function_call": {"name": "f"}}, "function_call", "unsupported_parameter"),
    ],
)
def test_bad_tools_are_refused_by_name(fields: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        parse_chat(chat(**fields))
    assert (refused.value.param, refused.value.code) == (param, code)
    assert param in refused.value.message


def test_the_template_gets_the_tools_as_they_came_but_for_strictness() -> None:
    use = parse_chat(chat(tools=[ADD, NOW])).tool_use
    shown = {key: value for key, value in ADD["function"].items() if key != "strict"}
    now = {"type": "function", "function": {"name": "now", "parameters": {}}}
    assert use.for_template() == [{"type": "function", "function": shown}, now]
    assert not use.must_call
    assert use.max_calls is None


def test_with_the_choice_none_the_model_is_told_of_no_tool() -> None:
    use = parse_chat(chat(tools=[ADD], tool_choice="none")).tool_use
    assert use.for_template() is None
    assert use.functions == ()


def test_a_named_choice_tells_of_all_tools_and_allows_one_call_of_one() -> None:
    use = parse_chat(chat(tools=[ADD, NOW], tool_choice=NAMED)).tool_use
    assert [tool["function"]["name"] for tool in use.for_template() or ()] == ["add", "now"]
    assert (use.names, use.must_call, use.max_calls) == (("now",), True, 1)


def test_without_parallel_calls_there_is_one_at_most() -> None:
    assert parse_chat(chat(tools=[ADD], parallel_tool_calls=False)).tool_use.max_calls == 1


@pytest.mark.parametrize(
    ("choice", "reason", "num_calls", "told"),
    [
        ("auto", "stop", 0, "stop"),
        ("auto", "stop", 2, "tool_calls"),
        ("required", "stop", 1, "tool_calls"),
        ("required", "length", 1, "length"),
        (NAMED, "stop", 1, "stop"),
    ],
)
def test_how_an_answer_ended(choice: Any, reason: str, num_calls: int, told: str) -> None:
    use = parse_chat(chat(tools=[NOW], tool_choice=choice)).tool_use
    assert use.finish_reason(reason, num_calls) == told


def test_a_function_without_parameters_takes_none() -> None:
    use = parse_chat(chat(tools=[NOW, ADD])).tool_use
    assert use.functions[0].arguments_schema == {
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }
    assert use.functions[1].arguments_schema == ADD["function"]["parameters"]
