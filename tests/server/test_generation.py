"""Answers of the real server over a tiny model: shapes, usage, and stream equals whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.server.conftest import MODEL, SHARED_CONTEXT_LEN
from tests.server.events import choices_of, post, stream, text_of

if TYPE_CHECKING:
    from tests.server.conftest import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
TURNS = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "the parrot"}]
PROMPTS = ["Once upon a time", "the tree", "Letters in order: A B C"]

CALLS: list[tuple[str, dict[str, Any]]] = [
    (COMPLETIONS, {"prompt": "Once upon a time", "temperature": 0}),
    (COMPLETIONS, {"prompt": "Once upon a time", "temperature": 1, "seed": 5, "max_tokens": 40}),
    (COMPLETIONS, {"prompt": [5, 6, 7, 300], "temperature": 0, "max_tokens": 1}),
    (COMPLETIONS, {"prompt": PROMPTS, "temperature": 0, "max_tokens": 12}),
    (COMPLETIONS, {"prompt": [[5, 6], [7]], "temperature": 0.5, "seed": 3, "max_tokens": 9}),
    (COMPLETIONS, {"prompt": "a", "ignore_eos": True, "min_tokens": 30, "max_tokens": 30}),
    (CHAT, {"messages": TURNS, "temperature": 0, "max_tokens": 24}),
    (CHAT, {"messages": TURNS, "temperature": 1.2, "seed": 11, "max_completion_tokens": 24}),
    (
        CHAT,
        {
            "messages": [*TURNS, {"role": "assistant", "content": "the answer"}],
            "continue_final_message": True,
            "temperature": 0,
            "max_tokens": 5,
        },
    ),
]


@pytest.mark.parametrize(("path", "body"), CALLS)
async def test_a_stream_equals_the_whole_answer(
    path: str, body: dict[str, Any], client: Client
) -> None:
    if "seed" not in body:
        body = {**body, "temperature": 0}
    whole = await post(client, path, body)
    chunks = await stream(client, path, {**body, "stream_options": {"include_usage": True}})
    for choice in whole["choices"]:
        parts = choices_of(chunks, choice["index"])
        assert "".join(map(text_of, parts)) == text_of(choice)
        assert [part["finish_reason"] for part in parts if part["finish_reason"]] == [
            choice["finish_reason"]
        ]
        assert text_of(parts[-1]) == ""
        assert parts[-1]["finish_reason"]
    for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert chunks[-1]["usage"][count] == whole["usage"][count]


@pytest.mark.parametrize(("path", "body"), CALLS)
@pytest.mark.parametrize(
    ("options", "usage_chunks"),
    [(None, 0), ({"include_usage": False}, 0), ({"include_usage": True}, 1)],
)
async def test_a_usage_chunk_comes_last_and_only_if_asked_for(
    path: str,
    body: dict[str, Any],
    options: dict[str, Any] | None,
    usage_chunks: int,
    client: Client,
) -> None:
    short: dict[str, Any] = {name: body[name] for name in ("prompt", "messages") if name in body}
    asked = {**short, "max_tokens": 3, "stream_options": options}
    chunks = await stream(client, path, asked)
    assert sum(not chunk["choices"] for chunk in chunks) == usage_chunks
    if usage_chunks:
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] >= 0
        assert all(chunk["usage"] is None for chunk in chunks[:-1])
    else:
        assert all("usage" not in chunk for chunk in chunks)


async def test_a_chat_stream_begins_with_the_role_and_ends_with_an_empty_delta(
    client: Client,
) -> None:
    chunks = await stream(client, CHAT, {"messages": TURNS, "max_tokens": 8, "ignore_eos": True})
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[0]["id"].startswith("chatcmpl-")
    parts = choices_of(chunks, 0)
    assert parts[0]["delta"] == {"role": "assistant", "content": ""}
    assert (parts[-1]["delta"], parts[-1]["finish_reason"]) == ({}, "length")
    for part in parts[1:-1]:
        assert list(part["delta"]) == ["content"]
        assert part["delta"]["content"]
        assert part["finish_reason"] is None


async def test_a_whole_chat_has_openais_shape(client: Client) -> None:
    turns = [{"role": "user", "content": "never asked before"}]
    answer = await post(client, CHAT, {"model": MODEL, "messages": turns, "max_tokens": 8})
    assert answer["object"] == "chat.completion"
    assert (answer["model"], answer["id"][:9]) == (MODEL, "chatcmpl-")
    [choice] = answer["choices"]
    assert choice["index"] == 0
    assert choice["message"]["role"] == "assistant"
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert list(usage["prompt_tokens_details"]) == ["cached_tokens"]


async def test_a_whole_completion_has_openais_shape(client: Client) -> None:
    answer = await post(client, COMPLETIONS, {"prompt": "a", "ignore_eos": True})
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["length"]
    assert answer["usage"]["completion_tokens"] == 16


async def test_several_prompts_give_the_texts_of_single_calls(client: Client) -> None:
    fields = {"temperature": 0, "max_tokens": 10}
    together = await post(client, COMPLETIONS, {"prompt": PROMPTS, **fields})
    singles = [await post(client, COMPLETIONS, {"prompt": one, **fields}) for one in PROMPTS]
    assert [choice["index"] for choice in together["choices"]] == [0, 1, 2]
    assert [choice["text"] for choice in together["choices"]] == [
        single["choices"][0]["text"] for single in singles
    ]
    for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert together["usage"][count] == sum(single["usage"][count] for single in singles)


async def test_a_repeated_prompt_is_cached_to_its_last_token_but_one(client: Client) -> None:
    body = {"prompt": list(range(3, 103)), "max_tokens": 20, "ignore_eos": True}
    cold = await post(client, COMPLETIONS, body)
    warm = await post(client, COMPLETIONS, body)
    assert cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] == 99


async def test_salts_do_not_share_what_is_cached(client: Client) -> None:
    body = {"prompt": list(range(3, 103)), "max_tokens": 20, "ignore_eos": True}
    counts = []
    for salt in ("one", "two", "one"):
        answer = await post(client, COMPLETIONS, {**body, "cache_salt": salt})
        counts.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert counts == [0, 0, 99]


@pytest.mark.parametrize("include", [False, True])
async def test_a_stop_string_cuts_the_text_and_is_the_finish_reason(
    include: bool, client: Client
) -> None:
    body = {"prompt": "Once", "temperature": 0, "max_tokens": 40, "ignore_eos": True}
    free = (await post(client, COMPLETIONS, body))["choices"][0]["text"]
    stop = free[10:13]
    cut = free[: free.index(stop) + (len(stop) if include else 0)]
    stopped = {**body, "stop": [stop], "include_stop_str_in_output": include}
    [choice] = (await post(client, COMPLETIONS, stopped))["choices"]
    chunks = await stream(client, COMPLETIONS, stopped)
    assert (choice["text"], choice["finish_reason"]) == (cut, "stop")
    assert "".join(map(text_of, choices_of(chunks, 0))) == cut


async def test_a_bias_of_a_hundred_decides_every_token(client: Client) -> None:
    token = 70
    body = {"prompt": "a", "temperature": 0, "max_tokens": 5, "logit_bias": {str(token): 100}}
    answer = await post(client, COMPLETIONS, body)
    stopped = await post(client, COMPLETIONS, {**body, "stop_token_ids": [token]})
    assert answer["usage"]["completion_tokens"] == 5
    assert stopped["choices"][0]["finish_reason"] == "stop"
    assert stopped["usage"]["completion_tokens"] == 1


async def test_the_same_seed_gives_the_same_text_alone_and_in_company(client: Client) -> None:
    body = {"temperature": 0.8, "seed": 42, "max_tokens": 16}
    alone = await post(client, COMPLETIONS, {"prompt": "the tree", **body})
    company = await post(client, COMPLETIONS, {"prompt": [*PROMPTS, "x"], **body})
    assert company["choices"][1]["text"] == alone["choices"][0]["text"]


async def test_a_chat_may_fill_the_rest_of_the_context(client: Client) -> None:
    answer = await post(client, CHAT, {"messages": TURNS, "ignore_eos": True})
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == SHARED_CONTEXT_LEN
