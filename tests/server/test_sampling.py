"""What sampling fields do to the tokens of an answer, whatever is cached and whoever shares a step.

Penalties look at what the request alone defines: repetition at prompt and output, presence and
frequency at the output.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.server.events import choices_of, post, stream, text_of

if TYPE_CHECKING:
    from radixserve.engine.async_engine import AsyncEngine
    from tests.server.conftest import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
WITH_IDS: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "return_token_ids": True}
SEEDED = {"prompt": "The tallest mountain on", "seed": 42, "temperature": 0.8, "max_tokens": 16}


async def ids_of(client: Client, body: dict[str, Any]) -> list[int]:
    """Return the output's token ids of a call with one choice."""
    [choice] = (await post(client, COMPLETIONS, {**WITH_IDS, **body}))["choices"]
    return list(choice["token_ids"])


@pytest.mark.parametrize(
    "fields",
    [
        {"repetition_penalty": 1.3},
        {"repetition_penalty": 0.8},
        {"presence_penalty": 1.5},
        {"frequency_penalty": 1.5},
        {"frequency_penalty": -0.5, "repetition_penalty": 1.2, "temperature": 0.9, "seed": 4},
        {"bad_words": ["e", "tree"]},
        {"logit_bias": {"70": 3, "71": -3}},
    ],
)
async def test_the_same_tokens_cold_warm_and_after_a_longer_prompt(
    fields: dict[str, Any], client: Client
) -> None:
    prompt = "red red red red blue blue " * 3
    body = {"prompt": prompt, "max_tokens": 20, **fields}
    salts = [f"{fields}", f"{fields} longer"]
    cold = await ids_of(client, {**body, "cache_salt": salts[0]})
    warm = await ids_of(client, {**body, "cache_salt": salts[0]})
    await post(client, COMPLETIONS, {**body, "prompt": prompt + "green", "cache_salt": salts[1]})
    again = await post(client, COMPLETIONS, {**WITH_IDS, **body, "cache_salt": salts[1]})
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 16
    assert cold == warm == again["choices"][0]["token_ids"]


async def test_a_seed_gives_one_text_whoever_shares_the_batch(client: Client) -> None:
    others = [{"prompt": f"other {i}", "temperature": 1.0, "max_tokens": 16} for i in range(7)]
    [alone] = (await post(client, COMPLETIONS, SEEDED))["choices"]
    companies = [[others[0]], [{**others[0], "seed": 1}], others]
    for company in companies:
        calls = [post(client, COMPLETIONS, body) for body in (SEEDED, *company)]
        first, *_ = await asyncio.gather(*calls)
        assert first["choices"][0]["text"] == alone["text"]


async def test_a_bias_bans_and_forces_tokens_beside_requests_that_have_none(
    client: Client,
) -> None:
    body = {"prompt": "the parrot said", "max_tokens": 6}
    free = await ids_of(client, body)
    banned, forced, beside = await asyncio.gather(
        ids_of(client, {**body, "logit_bias": {str(free[0]): -100}}),
        ids_of(client, {**body, "logit_bias": {"77": 100}}),
        ids_of(client, body),
    )
    assert free[0] not in banned
    assert forced == [77] * 6
    assert beside == free


async def test_only_allowed_tokens_come(client: Client) -> None:
    allowed = [70, 71, 90]
    body = {"prompt": "Once", "max_tokens": 30, "temperature": 2, "seed": 1}
    ids = await ids_of(client, {**body, "allowed_token_ids": allowed})
    assert set(ids) <= set(allowed)
    assert len(set(ids)) > 1
    response = await client.post(COMPLETIONS, json={**body, "allowed_token_ids": [100_000]})
    assert (await response.json())["error"]["param"] == "allowed_token_ids"


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_bad_words_never_come_at_a_words_start_or_inside_one(
    path: str, client: Client, shared_engine: AsyncEngine
) -> None:
    if path == COMPLETIONS:
        prompt: dict[str, Any] = {"prompt": "Once upon a time there was a"}
    else:
        prompt = {"messages": [{"role": "user", "content": "Once upon a time"}]}
    body = {**prompt, **WITH_IDS, "max_tokens": 60, "temperature": 1.0, "seed": 3}
    [free] = (await post(client, path, body))["choices"]
    tokenizer = shared_engine.tokenizer
    words = [tokenizer.decode([token]).strip() for token in free["token_ids"]]
    banned = [word for word in words if word.isalpha()][:6]
    assert len(banned) > 2
    [choice] = (await post(client, path, {**body, "bad_words": banned}))["choices"]
    spellings = [
        tokenizer.encode(space + word, add_special_tokens=False)
        for word in banned
        for space in ("", " ")
    ]
    ids = choice["token_ids"]
    for spelling in spellings:
        places = range(len(ids) - len(spelling) + 1)
        assert not any(ids[place : place + len(spelling)] == spelling for place in places)


async def test_no_stop_token_of_any_kind_comes_before_the_least_length(client: Client) -> None:
    body = {**WITH_IDS, "prompt": "Once", "ignore_eos": False, "max_tokens": 40}
    likely = {"2": 100, "80": 90, "81": 90}
    stops = {"logit_bias": likely, "stop_token_ids": [80, 81]}
    [short] = (await post(client, COMPLETIONS, {**body, **stops}))["choices"]
    assert short["token_ids"] == [2]
    answer = await post(client, COMPLETIONS, {**body, **stops, "min_tokens": 20})
    [choice] = answer["choices"]
    assert answer["usage"]["completion_tokens"] == 21
    assert not {2, 80, 81} & set(choice["token_ids"][:20])
    assert choice["token_ids"][20] == 2
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("off", [0, -1])
async def test_top_k_is_off_at_zero_and_minus_one(off: int, client: Client) -> None:
    body = {"prompt": "Once", "temperature": 1.5, "seed": 8, "max_tokens": 20}
    assert await ids_of(client, {**body, "top_k": off}) == await ids_of(client, body)
    assert await ids_of(client, {**body, "top_k": 1}) == await ids_of(
        client, {**body, "temperature": 0}
    )


async def test_ids_come_back_in_pieces_and_whole(
    client: Client, shared_engine: AsyncEngine
) -> None:
    prompt = "the parrot said"
    body = {**WITH_IDS, "prompt": prompt, "max_tokens": 30, "temperature": 1.5, "seed": 6}
    [whole] = (await post(client, COMPLETIONS, body))["choices"]
    parts = choices_of(await stream(client, COMPLETIONS, body), 0)
    assert whole["prompt_token_ids"] == shared_engine.tokenizer.encode(prompt)
    assert parts[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert not any("prompt_token_ids" in part for part in parts[1:])
    assert [token for part in parts for token in part["token_ids"]] == whole["token_ids"]
    assert len(whole["token_ids"]) == 30
    assert "".join(map(text_of, parts)) == shared_engine.tokenizer.decode(whole["token_ids"])


async def test_a_stop_token_is_among_the_ids_and_not_in_the_text(client: Client) -> None:
    body = {**WITH_IDS, "prompt": "Once", "max_tokens": 5, "stop_token_ids": [80]}
    [choice] = (await post(client, COMPLETIONS, {**body, "logit_bias": {"80": 100}}))["choices"]
    assert (choice["token_ids"], choice["text"]) == ([80], "")


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], ["a", ""]])
async def test_an_empty_prompt_hurts_nobody(prompt: Any, client: Client) -> None:
    response = await client.post(COMPLETIONS, json={"prompt": prompt, "max_tokens": 2})
    assert response.status in (200, 400)
    assert (await client.get("/health")).status == 200
    assert len(await ids_of(client, {"prompt": "a", "max_tokens": 2})) == 2
