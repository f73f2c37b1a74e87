"""Each key has cached prefixes of its own, through every door."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from radixserve.config import HttpConfig, KeyConfig

if TYPE_CHECKING:
    from tests.server.conftest import Client, ServeShared

pytestmark = pytest.mark.asyncio(loop_scope="session")

ONE, TWO, ADMIN = "sk-1", "sk-2", "sk-admin"
KEYS = KeyConfig(api_keys=(ONE, TWO), admin_api_keys=(ADMIN,))


def words(door: str) -> str:
    return f"{door}: once upon a time there was a little parrot who lived in the tree. " * 2


def turns(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


GREEDY = {"max_tokens": 1, "temperature": 0}
DOORS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": words("a"), **GREEDY},
    "/v1/chat/completions": {"messages": turns(words("b")), **GREEDY},
    "/v1/messages": {"model": "tiny", "messages": turns(words("c")), **GREEDY},
    "/v1/responses": {"input": words("d"), "max_output_tokens": 1, "temperature": 0},
    "/generate": {"text": words("e"), "sampling_params": {"max_new_tokens": 1, "temperature": 0}},
    "/v1/score": {"prompt": words("f"), "options": [" yes", " no"]},
}


def cached_of(answer: Any) -> int:
    """Return the cached tokens of any door's answer, wherever it has them."""
    found = {"cached_tokens", "cache_read_input_tokens"} & set(answer)
    if found:
        return int(answer[found.pop()])
    inner = [cached_of(value) for value in answer.values() if isinstance(value, dict)]
    return max(inner, default=0)


async def ask(client: Client, key: str, path: str, body: dict[str, Any]) -> int:
    response = await client.post(path, json=body, headers={"Authorization": f"Bearer {key}"})
    answer = await response.json()
    assert response.status == 200, answer
    return cached_of(answer)


@pytest.mark.parametrize("path", DOORS)
async def test_a_door_leads_to_the_callers_own_prefixes_only(
    path: str, serve_shared: ServeShared
) -> None:
    client = await serve_shared(HttpConfig(keys=KEYS))
    body = DOORS[path]
    await ask(client, ONE, path, body)
    assert await ask(client, ONE, path, body) > 8
    for key in (TWO, ADMIN):
        # What a call shares with itself (options behind one prompt) is not another's.
        first = await ask(client, key, path, body)
        assert first < await ask(client, key, path, body)


async def test_beams_and_siblings_stay_in_the_callers_namespace(serve_shared: ServeShared) -> None:
    client = await serve_shared(HttpConfig(keys=KEYS))
    for name, fields in (("n", {"n": 3}), ("beam", {"use_beam_search": True, "beam_width": 2})):
        body = {"prompt": words(name), "max_tokens": 3, "temperature": 0, **fields}
        await ask(client, ONE, "/v1/completions", body)
        plain = {"prompt": words(name), **GREEDY}
        assert await ask(client, TWO, "/v1/completions", plain) == 0
        assert await ask(client, ONE, "/v1/completions", plain) > 8
