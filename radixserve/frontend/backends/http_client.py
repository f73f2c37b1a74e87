"""Calls of an HTTP API: JSON in, JSON or server-sent events out, failures as our exceptions."""

from __future__ import annotations

import asyncio
import json
import re
import time
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Literal

from radixserve import errors
from radixserve.errors import (
    BackendError,
    BackendUnavailableError,
    InvalidRequestError,
    QueueFullError,
    RequestAbortedError,
    RequestError,
    ShuttingDownError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping

    import aiohttp

    from radixserve.errors import RadixServeError

CONNECT_TIMEOUT_S = 10.0
SILENCE_S = 60.0
"""A stream that says nothing for so long is dead: servers send comments every 15 seconds."""
LONGEST_EVENT = 2**21
"""Bytes of one event's line."""
_SECONDS = re.compile(r"\d+(\.\d+)?")


class HttpClient:
    """Calls one server, from one event loop.

    Args:
        url: The server's address.
        token: Sent as a bearer token when given.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"<HttpClient {self.url}>"

    def open(self) -> None:
        """Be used in the running event loop from now on; idempotent.

        Raises:
            BackendUnavailableError: it is used in another one.
        """
        import aiohttp

        loop = asyncio.get_running_loop()
        if self._loop is not None and self._loop is not loop:
            raise BackendUnavailableError(
                f"the connection to {self.url} belongs to another event loop; a program's .run() "
                "outside of a loop uses one of its own: give it a backend of its own"
            )
        self._loop = loop
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers=self._headers,
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
                read_bufsize=LONGEST_EVENT,
            )

    async def close(self) -> None:
        """Close the connections; idempotent."""
        session, self._session, self._loop = self._session, None, None
        if session is not None:
            await session.close()

    async def get(self, path: str) -> Any:
        """Return the JSON that a path has; see `post` for what it raises."""
        async with self._request("GET", path, None) as response:
            return await response.json()

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Return the JSON that answers a body.

        Raises:
            RadixServeError: the server refused or failed, cannot be reached, or talks nonsense.
        """
        async with self._request("POST", path, body) as response:
            return await response.json()

    async def events(
        self, path: str, body: Mapping[str, Any]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the events that answer a body, up to ``[DONE]``. Leaving early hangs up.

        Raises:
            RequestAbortedError: the stream was cut; and what `post` raises.
        """
        import aiohttp

        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=SILENCE_S
        )
        is_whole = False
        async with self._request("POST", path, body, timeout=timeout) as response:
            try:
                async for line in response.content:
                    event = _event(line)
                    if event == "done":
                        is_whole = True
                        break
                    if event is not None:
                        yield event
            finally:
                if not is_whole:
                    response.close()
        if not is_whole:
            raise RequestAbortedError(f"{self.url} ended the stream in mid-answer")

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None, **options: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        import aiohttp

        assert self._session is not None, "open() first"
        if body is not None:
            options["data"] = json.dumps(body, ensure_ascii=False).encode()
            options["headers"] = {"Content-Type": "application/json"}
        try:
            async with self._session.request(method, self.url + path, **options) as response:
                if response.status != 200:
                    raise failure_of(
                        response.status, await response.text(), response.headers, self.url
                    )
                yield response
        except aiohttp.ClientConnectorError as failed:
            raise BackendUnavailableError(f"cannot reach {self.url}: {failed.strerror}") from failed
        except TimeoutError as failed:
            raise RequestAbortedError(f"{self.url} has fallen silent") from failed
        except aiohttp.ClientPayloadError as failed:
            raise RequestAbortedError(f"{self.url} ended the answer in the middle") from failed
        except (aiohttp.ClientError, json.JSONDecodeError) as failed:
            raise BackendError(f"{self.url} gave no usable answer: {failed}") from failed


def _event(line: bytes) -> dict[str, Any] | Literal["done"] | None:
    """Return what a line of a stream says; None where it says nothing.

    Raises:
        RadixServeError: it tells of a failure.
    """
    if not line.startswith(b"data:"):
        return None
    data = line.removeprefix(b"data:").strip()
    if data == b"[DONE]":
        return "done"
    event = json.loads(data)
    if isinstance(event.get("error"), dict):
        raise _named_failure(500, event["error"], {})
    return dict(event)


def failure_of(status: int, body: str, headers: Mapping[str, str], url: str) -> RadixServeError:
    """Return the exception that a response tells of."""
    try:
        details = json.loads(body)["error"]
        if not isinstance(details["message"], str):
            raise TypeError
    except (ValueError, KeyError, TypeError):
        shown = body.strip()[:200] or "nothing"
        details = {"message": f"{url} answered {status}: {shown}"}
    return _named_failure(status, details, headers)


def _named_failure(
    status: int, details: Mapping[str, Any], headers: Mapping[str, str]
) -> RadixServeError:
    """Return the failure of that code, by the status where the code is not one of ours.

    A refusal by a server that takes nothing now says when to come again, if the server does.
    """
    kind = _KINDS.get(str(details.get("code")))
    failure = _failure_of_kind(kind, status, details)
    is_refusal = kind in (None, QueueFullError, ShuttingDownError)
    told_s = retry_after(headers) if is_refusal and status in (429, 503) else None
    if told_s is not None:
        failure.retry_after_s = told_s
    return failure


def _failure_of_kind(
    kind: type[RadixServeError] | None, status: int, details: Mapping[str, Any]
) -> RadixServeError:
    message, param = str(details.get("message")), details.get("param")
    if kind is QueueFullError or (kind is None and status == 429):
        return QueueFullError(message)
    if kind is not None and issubclass(kind, RequestError):
        return kind(message, param=param)
    if kind is not None:
        return kind(message)
    if 400 <= status < 500:
        refusal = {401: errors.AuthenticationError, 403: errors.PermissionDeniedError}.get(
            status, InvalidRequestError
        )
        return refusal(message, param=param)
    return BackendError(message)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return after how many seconds to come again: told in seconds, or as a date."""
    value = headers.get("Retry-After", "")
    if _SECONDS.fullmatch(value):
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


def _kinds() -> dict[str, type[RadixServeError]]:
    """Our exceptions by their codes on the wire."""
    found = {}
    for kind in vars(errors).values():
        code = kind.__dict__.get("code") if isinstance(kind, type) else None
        if code is not None and issubclass(kind, errors.RadixServeError):
            found[str(code)] = kind
    del found[errors.InvariantError.code]  # it takes a number; here it is a failed backend
    return found


_KINDS = _kinds()
