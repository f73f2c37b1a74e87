"""Text as pseudo tokens of four UTF-8 bytes: figures that depend on no tokenizer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from radixserve.types import ID_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from radixserve.types import PackedIds


def pseudo_tokens(text: str) -> PackedIds:
    """Return a text's packed pseudo tokens; the last one is filled with zeros.

    Four bytes of UTF-8 *are* a packed id, so this is an encoding and nothing more.
    """
    data = text.encode("utf-8", "surrogatepass")
    return data + bytes(-len(data) % ID_BYTES)


def render_messages(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return a dialogue as one text: role, content and calls of tools, in order.

    The text of some messages is a prefix of the text of these and more.
    """
    return "".join(map(_render, messages))


def _render(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    calls = message.get("tool_calls")
    return f"{message['role']}: {content}{json.dumps(calls) if calls else ''}\n\n"
