"""Tools that an answer may call: what a request says of them, and what follows from it.

none       the model is not told of any tool
auto       it is, and writes text, calls or both
required   a grammar leaves nothing but calls
named      a grammar leaves nothing but one call of that function
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import orjson
from pydantic import Discriminator, Field, Tag

from radixserve.server.protocol.body import RequestBody
from radixserve.server.protocol.refusal import INVALID_TYPE, refusal
from radixserve.text.answer_reader import AnswerFormat
from radixserve.text.reasoning import is_unfinished_reasoning

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.text.chat_template import ChatTemplate
    from radixserve.text.tool_calls import ToolCallStyle

MAX_TOOLS = 128
MAX_TOOLS_LEN = 512 * 1024
"""Bytes of all tools together, as JSON: they are rendered into the prompt."""

FunctionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.\-]{1,64}$")]
"""OpenAI's rule, and dots."""


class Function(RequestBody):
    """A function that the model may call."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] = Field(default_factory=dict)
    """A JSON schema of an object; empty: the function takes none."""
    strict: bool | None = None
    """Accepted; arguments are held to the schema where `tool_choice` demands a call."""

    @property
    def arguments_schema(self) -> dict[str, Any]:
        """The schema that arguments are held to."""
        if not self.parameters:
            return {"type": "object", "properties": {}, "additionalProperties": False}
        return {"type": "object", **self.parameters}


class Tool(RequestBody):
    """A tool; all of them are functions."""

    type: Literal["function"]
    function: Function


class NamedFunction(RequestBody):
    """The function that has to be called."""

    name: FunctionName


class NamedChoice(RequestBody):
    """Demands a call of one function."""

    type: Literal["function"]
    function: NamedFunction


def _branch_of_choice(value: Any) -> str | None:
    if isinstance(value, str):
        return "<mode>"
    return "<named>" if isinstance(value, dict | NamedChoice) else None


ToolsField = Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)]
ToolChoiceField = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<mode>")]
    | Annotated[NamedChoice, Tag("<named>")],
    Discriminator(
        _branch_of_choice,
        custom_error_type="tool_choice_type",
        custom_error_message="Input should be none, auto, required or an object naming a function",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """What one request says of tools, checked.

    Attributes:
        functions: Those that may be called; with a named choice only that one.
        told: Those that the model is told of.
        must_call: Whether the answer has to be calls.
        is_named: Whether the function was named by the caller.
        max_calls: Most calls of one answer; None: no limit.
    """

    functions: tuple[Function, ...] = ()
    told: tuple[Function, ...] = ()
    must_call: bool = False
    is_named: bool = False
    max_calls: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Of the functions that may be called."""
        return tuple(function.name for function in self.functions)

    @property
    def text_len(self) -> int:
        """Bytes of what the model is told, about."""
        return sum(_json_len(function) for function in self.told)

    def for_template(self) -> list[dict[str, Any]] | None:
        """Return the tools as `ChatTemplate` takes them; None if there are none to be told of."""
        if not self.told:
            return None
        return [
            {
                "type": "function",
                "function": function.model_dump(exclude={"strict"}, exclude_none=True),
            }
            for function in self.told
        ]

    def finish_reason(self, reason: str, num_calls: int) -> str:
        """Return OpenAI's word for how an answer with so many calls ended.

        Where the caller has named the function, that is "stop", as OpenAI says it.
        """
        if reason == "stop" and num_calls and not self.is_named:
            return "tool_calls"
        return reason


NO_TOOLS = ToolUse()


def answer_format(
    use: ToolUse,
    template: ChatTemplate,
    prompt_ids: Sequence[int],
    *,
    style: ToolCallStyle | None = None,
    begun_with: str = "",
) -> AnswerFormat:
    """Return how the answers to a conversation are read.

    Args:
        use: The tools.
        template: That rendered the conversation.
        prompt_ids: The rendered conversation.
        style: How calls are written; what the template shows when None.
        begun_with: The text of the last message, if the answer continues it.
    """
    may_think = template.has_reasoning and not use.must_call
    return AnswerFormat(
        style=(style or template.call_style) if use.functions else None,
        names=use.names,
        max_calls=use.max_calls,
        has_reasoning=may_think,
        is_inside_reasoning=may_think
        and (template.opens_reasoning(prompt_ids) or is_unfinished_reasoning(begun_with)),
    )


def tool_use_of(
    functions: Sequence[Function],
    choice: Literal["none", "auto", "required"] | NamedChoice = "auto",
    *,
    allows_parallel_calls: bool = True,
) -> ToolUse:
    """Return what a request says of tools.

    Raises:
        InvalidRequestError: two functions have one name, a schema is none of an object, the whole
            is too large, or the choice demands a function that is not there.
    """
    _check_functions(functions)
    max_calls = None if allows_parallel_calls else 1
    if isinstance(choice, NamedChoice):
        return ToolUse(
            functions=(_named(functions, choice.function.name),),
            told=tuple(functions),
            must_call=True,
            is_named=True,
            max_calls=1,
        )
    if choice == "required" and not functions:
        raise refusal("tool_choice: 'required' needs tools.", "tool_choice")
    if choice == "none" or not functions:
        return NO_TOOLS
    return ToolUse(
        functions=tuple(functions),
        told=tuple(functions),
        must_call=choice == "required",
        max_calls=max_calls,
    )


def _named(functions: Sequence[Function], name: str) -> Function:
    for function in functions:
        if function.name == name:
            return function
    raise refusal(
        f"tool_choice.function.name: there is no tool {name!r} in tools.",
        "tool_choice.function.name",
    )


def _check_functions(functions: Sequence[Function]) -> None:
    seen: set[str] = set()
    total = 0
    for index, function in enumerate(functions):
        where = f"tools[{index}].function"
        if function.name in seen:
            raise refusal(f"{where}.name: {function.name!r} is there twice.", f"{where}.name")
        seen.add(function.name)
        if function.parameters.get("type", "object") != "object":
            raise refusal(
                f"{where}.parameters: the schema must be of an object.",
                f"{where}.parameters",
                INVALID_TYPE,
            )
        total += _json_len(function, where)
    if total > MAX_TOOLS_LEN:
        raise refusal(
            f"tools: {total} bytes of JSON are more than the {MAX_TOOLS_LEN} allowed.", "tools"
        )


def _json_len(function: Function, where: str = "") -> int:
    try:
        schema = orjson.dumps(function.parameters)
    except orjson.JSONEncodeError:
        param = f"{where}.parameters"
        raise refusal(f"{param}: the schema is nested too deeply.", param) from None
    return len(function.name) + len(function.description or "") + len(schema)
