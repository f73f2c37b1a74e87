"""How a request reaches a server: over HTTP, whether that is elsewhere or in this process."""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

import aiohttp
import orjson

from radixserve.batch.record import Reply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from radixserve.batch.line import BatchLine

CONNECT_TIMEOUT_S = 10.0
MAX_RETRY_AFTER_S = 60.0
_SHOWN_LEN = 500


class UnreachableError(Exception):
    """Nobody answered: no connection, or it broke. The request may be sent again."""


class Dispatch(Protocol):
    """Sends requests to whoever answers them."""

    async def send(self, line: BatchLine) -> Reply:
        """Return the answer, of whatever status.

        Raises:
            UnreachableError: there is none.
        """
        ...


class HttpDispatch:
    """Sends requests to a server's routes. Implements `Dispatch`.

    Args:
        session: Knows the server's address, and what to show to it.
        most: Fields of a body and the most that their values may be; the least of both is sent.
            `priority` below everybody else's is said so.
    """

    def __init__(
        self, session: aiohttp.ClientSession, *, most: Mapping[str, int] | None = None
    ) -> None:
        self._session = session
        self._most = dict(most or {})

    async def send(self, line: BatchLine) -> Reply:
        """Return the answer, of whatever status.

        Raises:
            UnreachableError: there is none.
        """
        try:
            async with self._session.post(
                line.url,
                data=orjson.dumps(self._body(line)),
                headers={"Content-Type": "application/json"},
            ) as response:
                return _reply(response, await response.read())
        except (aiohttp.ClientError, TimeoutError, OSError) as failed:
            raise UnreachableError(str(failed) or type(failed).__name__) from failed

    def _body(self, line: BatchLine) -> dict[str, Any]:
        changes = {}
        for name, limit in self._most.items():
            given = line.body.get(name)
            changes[name] = min(given, limit) if isinstance(given, int) else limit
        return line.body | changes


@asynccontextmanager
async def open_session(
    url: str, *, headers: Mapping[str, str] | None = None, api_key: str | None = None
) -> AsyncIterator[aiohttp.ClientSession]:
    """Return a session of a server at `url`, which may end with ``/v1``, inside the `async with`.

    A request may take any time; the runner bounds how many there are.
    """
    shown = dict(headers or {})
    if api_key is not None:
        shown["Authorization"] = f"Bearer {api_key}"
    async with aiohttp.ClientSession(
        url.rstrip("/").removesuffix("/v1"),
        headers=shown,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
        connector=aiohttp.TCPConnector(limit=0),
    ) as session:
        yield session


def _reply(response: aiohttp.ClientResponse, raw: bytes) -> Reply:
    return Reply(
        status=response.status,
        request_id=response.headers.get("X-Request-Id", ""),
        body=_json_or_text(raw),
        retry_after_s=_seconds(response.headers.get("Retry-After")),
    )


def _json_or_text(raw: bytes) -> Any:
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return raw[:_SHOWN_LEN].decode("utf-8", "replace")


def _seconds(text: str | None) -> float | None:
    """Return the seconds that a header tells; dates are not understood."""
    try:
        seconds = float(text or "")
    except ValueError:
        return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_S) if math.isfinite(seconds) else None
