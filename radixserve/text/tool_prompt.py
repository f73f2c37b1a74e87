"""Tools for models whose chat template knows none: they are described in plain text.

The tools go into the system's message, calls of earlier turns back into the text that the model
wrote, and results into the user's messages; all of it in the manner of Hermes models, which many
others were trained on, and whose calls `HermesParser` finds.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PROMPT = """\
You can call functions to help answer the user. The functions are described within <tools></tools> \
tags, one JSON object a line:
<tools>
{tools}
</tools>

To call a function, write a JSON object with its name and arguments within \
<tool_call></tool_call> tags; for several calls, several such blocks:
<tool_call>
{{"name": <function name>, "arguments": <object of arguments>}}
</tool_call>"""


def with_calls_as_text(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with calls in the assistant's text and results in the user's.

    Args:
        messages: Normalized messages; see `messages.normalize_messages`.
    Mutates: nothing.
    """
    turns: list[dict[str, Any]] = []
    last_role = ""
    for message in messages:
        if message["role"] == "tool" == last_role:
            turns[-1]["content"] += f"\n{_response(message)}"
        elif message["role"] == "tool":
            turns.append({"role": "user", "content": _response(message)})
        else:
            turns.append(_with_own_calls_as_text(message))
        last_role = message["role"]
    return turns


def with_tools_as_text(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the messages with the tools in the system's.

    Args:
        messages: Normalized messages; see `messages.normalize_messages`.
        tools: The tools that may be called, as JSON objects.
    Mutates: nothing.
    """
    prompt = _PROMPT.format(tools="\n".join(_json(tool) for tool in tools))
    first, *others = map(dict, messages)
    if first["role"] != "system":
        return [{"role": "system", "content": prompt}, first, *others]
    content = f"{first['content']}\n\n{prompt}" if first["content"] else prompt
    return [{**first, "content": content}, *others]


def _with_own_calls_as_text(message: Mapping[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if not calls:
        return dict(message)
    texts = [message["content"]] if message["content"] else []
    texts += [f"<tool_call>\n{_json(_call(call))}\n</tool_call>" for call in calls]
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": "\n".join(texts)}


def _call(call: Any) -> Any:
    function = call.get("function", {}) if isinstance(call, dict) else {}
    return {"name": function.get("name"), "arguments": function.get("arguments")}


def _response(message: Mapping[str, Any]) -> str:
    return f"<tool_response>\n{message['content']}\n</tool_response>"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
