"""What a server takes, found out by asking it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson

from radixserve.bench.dialogue import Form
from radixserve.bench.http_target import COMPLETIONS
from radixserve.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.bench.workload import Session

_PROBE_LEN = 3
_ERRORS = (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError, TypeError)


@dataclass(frozen=True, slots=True)
class IdSupport:
    """What a server does with token ids."""

    takes: bool
    gives: bool
    """Whether it tells the ids of its answers."""

    def form_for(self, sessions: Sequence[Session]) -> Form:
        """Return ids where all of a load can be sent so: a second turn needs the first's answer."""
        needs_answers = any(len(session.turns) > 1 for session in sessions)
        return Form.IDS if self.takes and (self.gives or not needs_answers) else Form.TEXT


async def find_model(session: aiohttp.ClientSession, url: str) -> str:
    """Return the name of the first model that a server lists.

    Raises:
        ConfigError: it cannot be reached, refuses the key, or lists none.
    """
    try:
        async with session.get("/v1/models") as response:
            if response.status in (401, 403):
                raise ConfigError(f"{url} refuses the API key; give the right one with --api-key")
            response.raise_for_status()
            return str((await response.json())["data"][0]["id"])
    except aiohttp.ClientConnectionError as error:
        raise ConfigError(f"cannot reach {url}: {error or 'no reply'}") from error
    except (*_ERRORS, IndexError) as error:
        raise ConfigError(f"{url} lists no model; name it with --model ({error})") from error


async def probe_ids(
    session: aiohttp.ClientSession, model: str, id_range: tuple[int, int]
) -> IdSupport:
    """Return what a server does with prompts of token ids, the highest of a range among them."""
    body: dict[str, Any] = {
        "model": model,
        "prompt": [id_range[1] - 1] * _PROBE_LEN,
        "max_tokens": 1,
        "temperature": 0,
    }
    answer = await _ask(session, body | {"return_token_ids": True})
    if answer is not None:
        gives = bool((answer.get("choices") or [{}])[0].get("token_ids"))
        return IdSupport(_counted_right(answer), gives)
    answer = await _ask(session, body)
    return IdSupport(answer is not None and _counted_right(answer), False)


async def _ask(session: aiohttp.ClientSession, body: dict[str, Any]) -> dict[str, Any] | None:
    try:
        async with session.post(COMPLETIONS, data=orjson.dumps(body)) as response:
            answer = await response.json(content_type=None) if response.status == 200 else None
    except _ERRORS:
        return None
    return answer if isinstance(answer, dict) else None


def _counted_right(answer: dict[str, Any]) -> bool:
    """Whether the server took the ids as tokens: it may have added one for the beginning."""
    counted = (answer.get("usage") or {}).get("prompt_tokens")
    return counted in (None, _PROBE_LEN, _PROBE_LEN + 1)
