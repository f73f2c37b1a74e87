"""A server that speaks OpenAI's API, as a target."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson

from radixserve.bench.stream_events import parse_line
from radixserve.bench.target import Failure, Stopwatch, TokenCounts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from radixserve.bench.dialogue import Prompt
    from radixserve.bench.target import Outcome

CONNECT_TIMEOUT_S = 30.0
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
_SHOWN_LEN = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFields:
    """What every request says beside its prompt."""

    model: str
    path: str = COMPLETIONS
    temperature: float = 0.0
    ignores_eos: bool = True
    wants_ids: bool = False
    """Whether the answers' token ids are asked for; a conversation in ids goes on with them."""
    extra: Mapping[str, Any] = field(default_factory=dict)

    def body(self, prompt: Prompt, output_len: int) -> dict[str, Any]:
        """Return the body of a streaming request."""
        body: dict[str, Any] = {
            "model": self.model,
            "messages" if self.path == CHAT else "prompt": prompt,
            "max_tokens": output_len,
            "temperature": self.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.ignores_eos:
            body["ignore_eos"] = True
        if self.wants_ids:
            body["return_token_ids"] = True
        return body | dict(self.extra)


class HttpTarget:
    """Sends requests to a server's routes. Implements `Target`.

    Args:
        session: Knows the server's address, and what to show to it.
        fields: What every request says beside its prompt.
    """

    def __init__(self, session: aiohttp.ClientSession, fields: RequestFields) -> None:
        self._session = session
        self._fields = fields

    async def send(self, name: str, prompt: Prompt, output_len: int) -> Outcome:
        """Return what the request gave; failures are outcomes, not exceptions."""
        body = orjson.dumps(self._fields.body(prompt, output_len))
        watch = Stopwatch(name)
        counts = TokenCounts()
        try:
            async with self._session.post(self._fields.path, data=body) as response:
                if response.status != 200:
                    return watch.stop(counts, await _refusal(response))
                async for line in response.content:
                    event = parse_line(line)
                    if event is None:
                        continue
                    watch.chunk(event.text, event.token_ids)
                    counts = event.counts or counts
                    if event.is_last or event.failure is not None:
                        return watch.stop(counts, event.failure)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            return watch.stop(counts, Failure(type(error).__name__, str(error)[:_SHOWN_LEN]))
        return watch.stop(counts)


@asynccontextmanager
async def open_session(
    url: str, *, api_key: str | None = None, timeout_s: float | None = None
) -> AsyncIterator[aiohttp.ClientSession]:
    """Return a session of a server at `url`, which may end with ``/v1``, inside the `async with`.

    Args:
        timeout_s: Of a whole request; None for no limit.
    """
    headers = {"Content-Type": "application/json"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    async with aiohttp.ClientSession(
        url.rstrip("/").removesuffix("/v1"),
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S),
        # A connection a request: some servers drop idle ones just when the next request goes out.
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
    ) as session:
        yield session


async def _refusal(response: aiohttp.ClientResponse) -> Failure:
    text = await response.text(errors="replace")
    return Failure(f"HTTP {response.status}", " ".join(text.split())[:_SHOWN_LEN])
