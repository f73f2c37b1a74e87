"""Reading an answer as a client does: whole, or event by event."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.server.conftest import Client

POLL_S = 0.005
PATIENCE_S = 60.0


async def post(client: Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON answer of a call that must succeed."""
    response = await client.post(path, json=body)
    answer = await response.json()
    assert response.status == 200, answer
    return dict(answer)


async def stream(client: Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the chunks of a streamed call that must succeed and end with ``[DONE]``."""
    response = await client.post(path, json={**body, "stream": True})
    raw = await response.read()
    assert response.status == 200, raw
    return parse_events(raw)


def parse_events(raw: bytes) -> list[dict[str, Any]]:
    """Return the JSON events of a whole stream; its last event must be ``[DONE]``, once."""
    *events, done, rest = raw.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    assert all(event.startswith(b"data: ") for event in events)
    return [orjson.loads(event.removeprefix(b"data: ")) for event in events]


def choices_of(chunks: list[dict[str, Any]], index: int) -> list[dict[str, Any]]:
    """Return one choice's part of each chunk that has it."""
    found = [choice for chunk in chunks for choice in chunk["choices"]]
    return [choice for choice in found if choice["index"] == index]


def text_of(choice: dict[str, Any]) -> str:
    """Return the text of a choice, whole or a chunk's, of either route."""
    if "text" in choice:
        return str(choice["text"])
    return str((choice.get("message") or choice.get("delta") or {}).get("content") or "")


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so; fails after `PATIENCE_S`, a bound no working server meets."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  the engine's counters have no event to wait for
            await asyncio.sleep(POLL_S)
