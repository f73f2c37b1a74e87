"""The 400s: which field is at fault, in the caller's words, and a code a program can read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixserve.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import ValidationError

MISSING = "missing_required_parameter"
UNKNOWN = "unknown_parameter"
INVALID_TYPE = "invalid_type"
INVALID_VALUE = "invalid_value"

_SHOWN_INPUT_LEN = 40
_TYPE_ERRORS = frozenset({"tuple_type", "union_tag_not_found", "union_tag_invalid"})


def refusal(message: str, param: str | None, code: str = INVALID_VALUE) -> InvalidRequestError:
    """Return the error for one field, ready to raise."""
    error = InvalidRequestError(message, param=param)
    error.code = code
    return error


def refusal_of(failed: ValidationError) -> InvalidRequestError:
    """Return the error for the first thing that pydantic found wrong."""
    first = failed.errors(include_url=False, include_context=False)[0]
    param = field_path(first["loc"])
    kind = first["type"]
    message = first["msg"][:1].lower() + first["msg"][1:]
    return refusal(f"{param}: {message}{_shown(first['input'], kind)}.", param, _code_of(kind))


def field_path(loc: Sequence[str | int]) -> str:
    """Return a location as the caller would write it: ``messages[0].content``.

    Parts in angle brackets name a branch of a union, which the caller never wrote.
    """
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not part.startswith("<"):
            path += f".{part}" if path else part
    return path


def _code_of(kind: str) -> str:
    if kind == "missing":
        return MISSING
    if kind == "extra_forbidden":
        return UNKNOWN
    return INVALID_TYPE if kind.endswith("_type") or kind in _TYPE_ERRORS else INVALID_VALUE


def _shown(value: Any, kind: str) -> str:
    if kind in ("missing", "extra_forbidden") or not isinstance(value, bool | int | float | str):
        return ""
    shown = repr(value)
    return f"; got {shown}" if len(shown) <= _SHOWN_INPUT_LEN else ""
