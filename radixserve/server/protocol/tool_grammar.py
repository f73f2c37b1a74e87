"""What a grammar must hold an answer to for its tools.

a call is demanded                  calls and nothing else
the text has to be JSON             one call, or that JSON
a function is `strict`              free text, in which calls are as their schemas say
else                                no grammar: the model writes what it likes
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from radixserve.engine.grammars import Branch, JsonSchemaSpec, TaggedTextSpec, UnionSpec
from radixserve.server.protocol.refusal import refusal

if TYPE_CHECKING:
    from radixserve.engine.grammars import GrammarSpec
    from radixserve.server.protocol.tools import Function, ToolUse
    from radixserve.text.tool_calls import ToolCallStyle

_ANY_ARGUMENTS = '{"type":"object"}'


def grammar_with_tools(
    use: ToolUse, style: ToolCallStyle | None, text: GrammarSpec | None
) -> GrammarSpec | None:
    """Return what an answer must look like; None if it may be anything.

    Args:
        use: The tools.
        style: How calls are written; None where there are none.
        text: What the answer must look like without tools.
    Raises:
        InvalidRequestError: the text is held to something that calls cannot stand beside.
    """
    if style is None or not use.functions:
        return text
    if use.must_call:
        return _calls(use, style)
    if text is None and not any(one.strict for one in use.functions):
        return None
    if text is None:
        return _text_with_strict_calls(use, style)
    if not isinstance(text, JsonSchemaSpec):
        raise refusal(
            "tools: beside them the text can be held to a JSON schema only; "
            "leave out the tools, or set tool_choice.",
            "tools",
        )
    whole_calls = [_lone_call(one, style) for one in use.functions]
    return UnionSpec(branches=(*whole_calls, Branch("", text.schema)), max_branches=1)


def _calls(use: ToolUse, style: ToolCallStyle) -> UnionSpec:
    return UnionSpec(
        branches=tuple(
            Branch(_beginning(one, style), _schema(one), style.after) for one in use.functions
        ),
        opener=style.first,
        closer=style.last,
        separator=None if use.max_calls == 1 else style.between,
        max_branches=use.max_calls,
    )


def _text_with_strict_calls(use: ToolUse, style: ToolCallStyle) -> TaggedTextSpec | None:
    """Calls that nothing marks cannot be told from text before they are complete."""
    if not style.trigger:
        return None
    branches = tuple(_lone_call(one, style, is_strict=one.strict) for one in use.functions)
    return TaggedTextSpec(branches=branches, triggers=(style.trigger,))


def _lone_call(
    function: Function, style: ToolCallStyle, *, is_strict: bool | None = True
) -> Branch:
    schema = _schema(function) if is_strict else _ANY_ARGUMENTS
    return Branch(style.first + _beginning(function, style), schema, style.after + style.last)


def _beginning(function: Function, style: ToolCallStyle) -> str:
    return style.before_name + function.name + style.before_arguments


def _schema(function: Function) -> str:
    return orjson.dumps(function.arguments_schema).decode()
