"""`RemoteChat`: answers from a server that speaks the OpenAI chat completions API."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

from radixserve.cli.conversation import AnswerPart, ChatError, TokenCounts

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence

    import aiohttp

    from radixserve.cli.conversation import ChatSampling, Message

_CONNECT_TIMEOUT_S = 10.0


class RemoteChat:
    """Streams chat completions over HTTP. Implements `conversation.ChatBackend`.

    Args:
        url: The server's address, with or without a closing ``/v1``.
        api_key: Sent as a bearer token when given.
    """

    def __init__(self, url: str, sampling: ChatSampling, *, api_key: str | None = None) -> None:
        self._url = url.rstrip("/").removesuffix("/v1")
        self._sampling = sampling
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._model = ""
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> str:
        """Connect and return the name of the model that answers: the first that is listed.

        Raises:
            ChatError: the server cannot be reached, refuses the key or has no model.
        """
        async with self._request("GET", "/v1/models") as response:
            listed = [model["id"] for model in (await response.json())["data"]]
        if not listed:
            raise ChatError(f"{self._url} lists no model")
        self._model = listed[0]
        return self._model

    async def answer(self, messages: Sequence[Message]) -> AsyncGenerator[AnswerPart, None]:
        """Yield the answer as it arrives; closing early closes the connection, which aborts it."""
        body = {
            "model": self._model,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": self._sampling.temperature,
            "max_tokens": self._sampling.max_tokens,
        }
        if self._sampling.seed is not None:
            body["seed"] = self._sampling.seed
        async with self._request("POST", "/v1/chat/completions", json=body) as response:
            async for line in response.content:
                if part := parse_event(line):
                    yield part

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    @contextlib.asynccontextmanager
    async def _request(
        self, method: str, path: str, **arguments: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        import aiohttp

        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S)
            self._session = aiohttp.ClientSession(headers=self._headers, timeout=timeout)
        try:
            async with self._session.request(method, self._url + path, **arguments) as response:
                if response.status != 200:
                    raise ChatError(_refusal(response.status, await response.text()))
                yield response
        except aiohttp.ClientConnectorError as error:
            raise ChatError(
                f"cannot reach {self._url}: {_reason(error.os_error)}; start a server with "
                "'radixserve serve', or chat without one with --embedded"
            ) from error
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
            raise ChatError(f"{self._url} gave no usable answer: {error or 'no reply'}") from error


def parse_event(line: bytes) -> AnswerPart | None:
    """Return what one line of a server-sent event stream says, None where it says nothing.

    Raises:
        ChatError: the server reports an error in mid-stream.
    """
    if not line.startswith(b"data:"):
        return None
    data = line.removeprefix(b"data:").strip()
    if data == b"[DONE]":
        return None
    event = json.loads(data)
    if "error" in event:
        raise ChatError(event["error"]["message"])
    text = "".join(choice["delta"].get("content") or "" for choice in event["choices"])
    return AnswerPart(text, _counts(event.get("usage")))


def _counts(usage: dict[str, Any] | None) -> TokenCounts | None:
    if usage is None:
        return None
    details = usage.get("prompt_tokens_details") or {}
    return TokenCounts(
        usage["prompt_tokens"], details.get("cached_tokens") or 0, usage["completion_tokens"]
    )


def _reason(error: OSError) -> str:
    # A failed look-up of a name has a number of its own; other numbers are the system's.
    number = error.errno or 0
    return os.strerror(number) if number > 0 else str(error.strerror or error)


def _refusal(status: int, body: str) -> str:
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = body.strip()[:200]
    return f"the server answered {status}: {message}"
