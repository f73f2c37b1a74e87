"""Bytes to JSON values, and the sentence that says what is wrong with the bytes.

Only strict JSON passes: no NaN, no infinities, and no text that is half of a surrogate pair, which
no tokenizer could encode.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

import orjson

from radixserve.server.protocol.refusal import field_path, refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from radixserve.errors import InvalidRequestError

_INVALID_JSON = "invalid_json"
_BROKEN = re.compile("[\ud800-\udfff]")
_HALF = "half of a surrogate pair (\\ud800 to \\udfff), which is no character"
_END = "\ud800"
"""Marks the end of a walk: no key in a path can be equal to it, since such keys are refused."""


def parse_json(raw: bytes) -> Any:
    """Return the JSON value in `raw`.

    Raises:
        InvalidRequestError: the bytes are not strict JSON; names the field where one can be told.
    """
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as failed:
        raise _explained(raw, failed) from None


def _explained(raw: bytes, failed: orjson.JSONDecodeError) -> InvalidRequestError:
    """Return the error for bytes that orjson refused.

    The standard library's parser is laxer: what it accepts has a path that can be named.
    """
    try:
        lax = json.loads(raw)
    except (ValueError, RecursionError):
        return refusal(f"The body is not valid JSON: {failed}.", None, _INVALID_JSON)
    found = _first_offence(lax)
    if found is None:
        return refusal(f"The body is not valid JSON: {failed}.", None, _INVALID_JSON)
    path, reason = found
    param = field_path(path) or None
    return refusal(f"{param or 'The body'}: {reason}.", param)


def _first_offence(lax: Any) -> tuple[list[str | int], str] | None:
    """Return the path to where strict JSON is broken first, and how.

    Walks with a stack of iterators: memory is bounded by the depth, not by the size.
    Complexity: O(n).
    """
    path: list[str | int] = [""]
    walks: list[Iterator[tuple[str | int, Any]]] = [iter([("", lax)])]
    while walks:
        path[-1], value = next(walks[-1], (_END, None))
        if path[-1] == _END:
            walks.pop()
            path.pop()
            continue
        reason = _offence(value)
        if reason is not None:
            return path[1:], reason
        if isinstance(value, list | dict):
            walks.append(_items(value))
            path.append("")
    return None


def _items(value: list[Any] | dict[str, Any]) -> Iterator[tuple[str | int, Any]]:
    return iter(value.items()) if isinstance(value, dict) else iter(enumerate(value))


def _offence(value: Any) -> str | None:
    if isinstance(value, float) and not math.isfinite(value):
        return "numbers must be finite"
    if isinstance(value, dict) and any(_BROKEN.search(key) for key in value):
        return f"a key holds {_HALF}"
    if isinstance(value, str) and _BROKEN.search(value):
        return f"the text holds {_HALF}"
    return None
