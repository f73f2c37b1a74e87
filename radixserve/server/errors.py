"""Every failure becomes an error body, on every route, in one place.

The body is OpenAI's, or Anthropic's on its routes: see `envelopes`.

Handlers contain no `try`: they raise, and `error_middleware` answers. What the caller cannot change
(a crash, a broken invariant) is logged with its traceback and told to the caller in neutral words.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson
from aiohttp import web

from radixserve.errors import (
    AuthenticationError,
    BackendError,
    EngineDeadError,
    QueueFullError,
    RadixServeError,
    RequestAbortedError,
    RequestError,
    RequestTimeoutError,
    RequestTooLargeError,
)
from radixserve.server.envelopes import error_json
from radixserve.server.exchange import current_exchange

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiohttp.typedefs import Handler

logger = logging.getLogger(__name__)

JSON_TYPE = "application/json"
UNAVAILABLE_RETRY_S = 5
"""Sent with a 503: about how long a restart or a drain takes."""

_INTERNAL_MESSAGE = "The server failed to handle this request; the server's log has the cause."
_SERVER_MESSAGES: Mapping[type[RadixServeError], str] = {
    BackendError: "The model's forward pass failed for this request; it may be sent again.",
    EngineDeadError: "The engine has stopped; the server must be restarted.",
}
_NOT_LOGGED = (
    RequestError,
    RequestAbortedError,
    RequestTimeoutError,
    EngineDeadError,
    web.HTTPException,
)
_HTTP_CODES = {
    400: ("invalid_request_error", "invalid_request"),
    404: ("not_found_error", "not_found"),
    405: ("invalid_request_error", "method_not_allowed"),
    413: ("invalid_request_error", "request_too_large"),
}


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """What a caller is told about a failure."""

    status: int
    message: str
    error_type: str
    code: str
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self, path: str) -> bytes:
        """Return the JSON of the error, in the envelope of the path's API."""
        return orjson.dumps(error_json(self, path))

    def details(self) -> dict[str, Any]:
        """Return the content of OpenAI's envelope."""
        return {
            "message": self.message,
            "type": self.error_type,
            "param": self.param,
            "code": self.code,
        }

    def response(self, path: str) -> web.Response:
        """Return the response to a caller of that path, with its status and headers."""
        return web.Response(
            status=self.status, body=self.body(path), content_type=JSON_TYPE, headers=self.headers
        )


def reply_to(error: Exception) -> ErrorReply:
    """Return what the caller is told about an exception. Changes nothing and logs nothing."""
    if isinstance(error, RequestError):
        return _reply_to_request_error(error)
    if isinstance(error, RadixServeError):
        return _reply_to_server_error(error)
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return _reply_to_request_error(RequestTooLargeError(_too_large_message(error)))
    if isinstance(error, web.HTTPException):
        return _reply_to_http(error)
    if isinstance(error, web.RequestPayloadError | aiohttp.http.HttpProcessingError):
        return ErrorReply(400, "The body cannot be read.", *_HTTP_CODES[400])
    return ErrorReply(500, _INTERNAL_MESSAGE, "internal_server_error", "internal_error")


def log_failure(error: Exception, request: web.Request) -> None:
    """Log with its traceback what the caller is not told, and what nobody has logged before."""
    if not isinstance(error, _NOT_LOGGED):
        logger.error("%s %s failed", request.method, request.path, exc_info=error)


@web.middleware
async def error_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn every exception of a handler into a response.

    Cancellation passes: it means that the client has gone or that the server ends. So does a
    failed write, after which there is nobody to answer.
    """
    try:
        return await handler(request)
    except aiohttp.ClientConnectionResetError:
        raise
    except Exception as error:
        if isinstance(error, web.HTTPException) and error.status < 400:
            raise
        reply = reply_to(error)
        if reply.status >= 500:
            log_failure(error, request)
        exchange = current_exchange()
        if exchange is not None:
            exchange.error_code = reply.code
        return reply.response(request.path)


def _reply_to_request_error(error: RequestError) -> ErrorReply:
    return ErrorReply(
        error.status_hint,
        error.message,
        error.error_type,
        error.code,
        error.param,
        _headers_of(error),
    )


def _headers_of(error: RequestError) -> Mapping[str, str]:
    if isinstance(error, QueueFullError):
        return {"Retry-After": str(error.retry_after_s)}
    if isinstance(error, AuthenticationError):
        return {"WWW-Authenticate": "Bearer"}
    return _retry_headers(error.status_hint)


def _retry_headers(status: int) -> Mapping[str, str]:
    return {"Retry-After": str(UNAVAILABLE_RETRY_S)} if status == 503 else {}


def _reply_to_server_error(error: RadixServeError) -> ErrorReply:
    status = getattr(error, "status_hint", 500)
    return ErrorReply(
        status,
        _server_message(error),
        getattr(error, "error_type", "internal_server_error"),
        getattr(error, "code", "internal_error"),
        headers=_retry_headers(status),
    )


def _server_message(error: RadixServeError) -> str:
    if isinstance(error, RequestAbortedError | RequestTimeoutError):
        return str(error) or "The server ended this request before it was finished."
    for kind, message in _SERVER_MESSAGES.items():
        if isinstance(error, kind):
            return message
    return _INTERNAL_MESSAGE


def _too_large_message(error: web.HTTPRequestEntityTooLarge) -> str:
    return f"The body is too large: {error.text or 'it is over the limit'}."


def _reply_to_http(error: web.HTTPException) -> ErrorReply:
    kind, code = _HTTP_CODES.get(
        error.status,
        ("invalid_request_error" if error.status < 500 else "internal_server_error", "http_error"),
    )
    kept = {name: value for name, value in error.headers.items() if name == "Allow"}
    return ErrorReply(error.status, f"{error.reason}.", kind, code, headers=kept)
