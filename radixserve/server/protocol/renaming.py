"""Refusals in the caller's own words, on routes whose bodies are read as a chat's.

caller wrote    tools[0].input_schema            (Anthropic's messages)
chat calls it   tools[0].function.parameters
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from radixserve.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Names = Sequence[tuple[re.Pattern[str], str]]


def names(*pairs: tuple[str, str]) -> Names:
    """Return a table of (pattern of the chat's name, the caller's); the first that fits counts.

    A name stands at the beginning of a message or alone as the field.
    """
    return [(re.compile(rf"^{pattern}(?=$|[.:\[ ])"), name) for pattern, name in pairs]


@contextmanager
def named_as(table: Names) -> Iterator[None]:
    """Let refusals from inside name the fields as the caller wrote them.

    Raises:
        InvalidRequestError: the same one, in other words.
    """
    try:
        yield
    except InvalidRequestError as refused:
        refused.param = _renamed(refused.param or "", table) or None
        refused.message = _renamed(refused.message, table)
        refused.args = (refused.message,)
        raise


def _renamed(text: str, table: Names) -> str:
    for pattern, name in table:
        found, count = pattern.subn(name, text, count=1)
        if count:
            return found
    return text


RESPONSES_NAMES = names(
    (r"response_format\.json_schema\.schema", "text.format.schema"),
    (r"response_format\.json_schema", "text.format"),
    (r"response_format", "text.format"),
    (r"tools\[(\d+)\]\.function", r"tools[\1]"),
    (r"tool_choice\.function\.name", "tool_choice.name"),
    (r"max_completion_tokens", "max_output_tokens"),
    (r"messages", "input"),
)
MESSAGES_NAMES = names(
    (r"tools\[(\d+)\]\.function\.parameters", r"tools[\1].input_schema"),
    (r"tools\[(\d+)\]\.function\.name", r"tools[\1].name"),
    (r"tools\[(\d+)\]\.function", r"tools[\1]"),
    (r"tool_choice\.function\.name", "tool_choice.name"),
    (r"max_completion_tokens", "max_tokens"),
    (r"stop(?:\[\d+\])?", "stop_sequences"),
)
