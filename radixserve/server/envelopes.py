"""The JSON of an error, in the words of the API family that the path belongs to.

OpenAI       {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}
Anthropic    {"type": "error", "error": {"type": ..., "message": ...}}
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from radixserve.server.errors import ErrorReply

ANTHROPIC_PATHS = "/v1/messages"
"""What the paths of Anthropic's API begin with."""

_ANTHROPIC_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def openai_error(reply: ErrorReply) -> dict[str, Any]:
    """Return the error as OpenAI's clients read it."""
    return {"error": reply.details()}


def anthropic_error(reply: ErrorReply) -> dict[str, Any]:
    """Return the error as Anthropic's clients read it; the type follows from the status.

    Source: docs.anthropic.com/en/api/errors.
    """
    other = "invalid_request_error" if reply.status < 500 else "api_error"
    kind = _ANTHROPIC_TYPES.get(reply.status, other)
    return {"type": "error", "error": {"type": kind, "message": reply.message}}


def error_json(reply: ErrorReply, path: str) -> dict[str, Any]:
    """Return the error for a caller of that path."""
    is_anthropic = path == ANTHROPIC_PATHS or path.startswith(ANTHROPIC_PATHS + "/")
    return anthropic_error(reply) if is_anthropic else openai_error(reply)
