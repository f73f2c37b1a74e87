"""One line of a batch file: a request, or what is wrong with it.

    {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Once"}}

Source: platform.openai.com/docs/api-reference/batch/request-input.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import orjson

URLS = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages")
"""What a line may ask for."""
MAX_CUSTOM_ID_LEN = 512
"""Characters."""
_SHOWN_LEN = 80


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One request.

    Args:
        number: Of its line, from 1.
    """

    number: int
    custom_id: str
    url: str
    body: dict[str, Any]

    @property
    def key(self) -> str:
        """What its result is known by."""
        return result_key(self.custom_id)


@dataclass(frozen=True, slots=True)
class LineFault:
    """A line that cannot be run, and why."""

    number: int
    code: str
    message: str
    param: str | None = None
    custom_id: str | None = None
    """Of the line, where it has one."""

    @property
    def key(self) -> str:
        """What its record is known by: its id may be missing, or another line's."""
        return fault_key(self.number)


ParsedLine: TypeAlias = BatchLine | LineFault


def result_key(custom_id: str) -> str:
    """Return what the result of a line with this id is known by."""
    return f"id:{custom_id}"


def fault_key(number: int) -> str:
    """Return what the record of a faulty line is known by."""
    return f"line:{number}"


def parse_line(raw: bytes, number: int, *, urls: tuple[str, ...] = URLS) -> ParsedLine:
    """Return the request that a line holds, or what is wrong with the line.

    Args:
        raw: Without a byte-order mark; not blank.
        urls: What a line may ask for.
    """
    try:
        fields = orjson.loads(raw)
    except orjson.JSONDecodeError as failed:
        return LineFault(number, "invalid_json", f"The line is not valid JSON: {failed}.")
    if not isinstance(fields, dict):
        return LineFault(number, "invalid_type", "The line must be a JSON object.")
    return _checked(fields, number, urls)


def _checked(fields: dict[str, Any], number: int, urls: tuple[str, ...]) -> ParsedLine:
    custom_id, body = fields.get("custom_id"), fields.get("body")
    found = _fault(fields, urls)
    if found is None:
        return BatchLine(number, str(custom_id), fields["url"], body or {})
    code, param, message = found
    known_id = custom_id if isinstance(custom_id, str) else None
    return LineFault(number, code, f"{param}: {message}", param, known_id)


def _fault(fields: dict[str, Any], urls: tuple[str, ...]) -> tuple[str, str, str] | None:
    """Return code, field and reason of the first thing that is wrong."""
    for name in ("custom_id", "method", "url", "body"):
        if fields.get(name) is None:
            return "missing_required_parameter", name, "the line must have this field."
    custom_id, method, url, body = (fields[name] for name in ("custom_id", "method", "url", "body"))
    if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= MAX_CUSTOM_ID_LEN:
        text = f"must be a string of 1 to {MAX_CUSTOM_ID_LEN} characters."
        return "invalid_value", "custom_id", text
    if method != "POST":
        return "invalid_value", "method", f"must be POST; got {_shown(method)}."
    if url not in urls:
        return "invalid_url", "url", f"must be {' or '.join(urls)}; got {_shown(url)}."
    if not isinstance(body, dict):
        return "invalid_type", "body", "must be a JSON object."
    if body.get("stream"):
        return "unsupported_parameter", "body.stream", "a result in a file cannot be streamed."
    return None


def duplicate_fault(line: BatchLine) -> LineFault:
    """Return the fault of a line whose id an earlier one has."""
    message = f"custom_id: an earlier line has the id {_shown(line.custom_id)}."
    return LineFault(line.number, "duplicate_custom_id", message, "custom_id", line.custom_id)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_LEN else text[:_SHOWN_LEN] + "..."
