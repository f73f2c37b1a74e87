"""`echo`: the prompt as a part of the answer, with its log-probabilities, and nothing but it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.likelihood import logprobs_of
from tests.server.conftest import SHARED_CONTEXT_LEN
from tests.server.events import choices_of, post, stream, text_of
from tests.server.nearly import LOGPROB_TOLERANCE, assert_nearly_equal

if TYPE_CHECKING:
    from radixserve.engine.async_engine import AsyncEngine
    from tests.server.conftest import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")

COMPLETIONS = "/v1/completions"
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
LONG = [11 + (53 * i * i + 19 * i) % 300 for i in range(200)]

CALLS: list[dict[str, Any]] = [
    {"prompt": "My reply: No", "max_tokens": 6},
    {"prompt": "My reply: No", "max_tokens": 6, "logprobs": 2},
    {"prompt": "My reply: No", "max_tokens": 0},
    {"prompt": "My reply: No", "max_tokens": 0, "logprobs": 1},
    {"prompt": ["a tree", "the parrot"], "max_tokens": 3, "n": 2, "logprobs": 0, "seed": 1},
    {"prompt": [[5, 6, 300], [9]], "max_tokens": 0, "logprobs": 3},
    {"prompt": "<|im_start|>user", "max_tokens": 2, "logprobs": 1},
    {"prompt": [1, 5, 6], "max_tokens": 2, "logprobs": 1, "skip_special_tokens": False},
    {"prompt": "My reply", "max_tokens": 9, "logprobs": 1, "return_token_ids": True},
    {"prompt": "the parrot \N{PARROT}!", "max_tokens": 4, "logprobs": 1},
]


@pytest.mark.parametrize("body", CALLS)
async def test_a_stream_equals_the_whole_answer(body: dict[str, Any], client: Client) -> None:
    body = {"temperature": 0.9, "seed": 3, **body, "echo": True}
    whole = await post(client, COMPLETIONS, body)
    chunks = await stream(client, COMPLETIONS, {**body, "stream_options": {"include_usage": True}})
    for choice in whole["choices"]:
        parts = choices_of(chunks, choice["index"])
        assert "".join(map(text_of, parts)) == choice["text"]
        assert [part["finish_reason"] for part in parts if part["finish_reason"]] == [
            choice["finish_reason"]
        ]
        for name in choice["logprobs"] or {}:
            told = [item for part in parts for item in (part["logprobs"] or {}).get(name, [])]
            assert_nearly_equal(told, choice["logprobs"][name])
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


async def test_a_long_prompt_is_told_whole_whether_it_is_cached_or_not(client: Client) -> None:
    body = {"prompt": LONG, "echo": True, "logprobs": 1, "max_tokens": 1, **GREEDY}
    cold = (await post(client, COMPLETIONS, body))["choices"][0]["logprobs"]
    warm = (await post(client, COMPLETIONS, body))["choices"][0]["logprobs"]
    for told in (cold, warm):
        assert {len(values) for values in told.values()} == {len(LONG) + 1}
        assert told["token_logprobs"][0] is told["top_logprobs"][0] is None
        assert all(value is not None for value in told["token_logprobs"][1:])
    assert_nearly_equal(warm, cold)


async def test_the_prompts_tokens_are_scored_as_by_a_model_without_a_cache(
    client: Client, shared_engine: AsyncEngine
) -> None:
    body = {"prompt": LONG[:77], "echo": True, "logprobs": 0, "max_tokens": 0}
    for _ in range(2):
        [choice] = (await post(client, COMPLETIONS, body))["choices"]
        expected = logprobs_of(shared_engine.core, LONG[:77])
        told = choice["logprobs"]["token_logprobs"][1:]
        assert told == pytest.approx(expected, abs=LOGPROB_TOLERANCE)


@pytest.mark.parametrize("logprobs", [None, 0, 1])
async def test_no_tokens_may_be_asked_for(logprobs: int | None, client: Client) -> None:
    prompt = "My reply: No"
    body = {"prompt": prompt, "echo": True, "logprobs": logprobs, "max_tokens": 0}
    for _ in range(2):
        answer = await post(client, COMPLETIONS, body)
        [choice] = answer["choices"]
        assert (choice["text"], choice["finish_reason"]) == (prompt, "length")
        assert answer["usage"]["completion_tokens"] == 0
        assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"]
        if logprobs is not None:
            assert len(choice["logprobs"]["tokens"]) == answer["usage"]["prompt_tokens"]
            assert "".join(choice["logprobs"]["tokens"]) == prompt
    plain = await post(client, COMPLETIONS, {"prompt": prompt, "max_tokens": 2, **GREEDY})
    assert plain["usage"]["completion_tokens"] == 2


async def test_a_scored_prompt_alone_needs_no_echo(client: Client) -> None:
    body = {"prompt": "My reply: No", "prompt_logprobs": 1, "max_tokens": 0}
    [choice] = (await post(client, COMPLETIONS, body))["choices"]
    assert (choice["text"], choice["logprobs"]) == ("", None)
    assert len(choice["prompt_logprobs"]) > 3


@pytest.mark.parametrize(
    "prompt", ["the parrot", "<|im_start|>user says <|im_end|>", "\N{PARROT} \N{SNOWMAN} a", "  a"]
)
async def test_offsets_point_into_the_text(prompt: str, client: Client) -> None:
    body = {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 5, **GREEDY}
    [choice] = (await post(client, COMPLETIONS, body))["choices"]
    text, told = choice["text"], choice["logprobs"]
    assert text.startswith(prompt)
    assert told["text_offset"] == sorted(told["text_offset"])
    for name, at in zip(told["tokens"], told["text_offset"], strict=True):
        if not name.startswith("bytes:") and (at < len(prompt) or "<|" not in name):
            assert text[at : at + len(name)] == name


async def test_an_echo_of_ids_is_their_text(client: Client, shared_engine: AsyncEngine) -> None:
    ids = shared_engine.tokenizer.encode("the parrot said")
    body = {"prompt": [1, *ids], "echo": True, "max_tokens": 1, **GREEDY}
    [choice] = (await post(client, COMPLETIONS, body))["choices"]
    assert choice["text"].startswith("the parrot said")
    shown = {**body, "skip_special_tokens": False}
    [choice] = (await post(client, COMPLETIONS, shown))["choices"]
    assert choice["text"].startswith("<|im_start|>the parrot said")


async def test_a_truncated_prompt_keeps_its_end(client: Client, shared_engine: AsyncEngine) -> None:
    ids = shared_engine.tokenizer.encode("Once upon a time there was a little parrot")
    body = {"echo": True, "return_token_ids": True, "max_tokens": 3, **GREEDY}
    for prompt in ("Once upon a time there was a little parrot", ids):
        cut = {**body, "prompt": prompt, "truncate_prompt_tokens": 5}
        answer = await post(client, COMPLETIONS, cut)
        [choice] = answer["choices"]
        assert choice["prompt_token_ids"] == ids[-5:]
        assert choice["text"].startswith(shared_engine.tokenizer.decode(ids[-5:]))
        assert answer["usage"]["prompt_tokens"] == 5
    whole = {**body, "prompt": ids, "truncate_prompt_tokens": 500}
    assert (await post(client, COMPLETIONS, whole))["usage"]["prompt_tokens"] == len(ids)


async def test_a_prompt_may_be_cut_to_what_leaves_room_for_the_output(client: Client) -> None:
    body = {"prompt": [5] * 1000, "truncate_prompt_tokens": -1, "max_tokens": 30, **GREEDY}
    usage = (await post(client, COMPLETIONS, body))["usage"]
    assert usage["prompt_tokens"] == SHARED_CONTEXT_LEN - 30
    assert usage["completion_tokens"] == 30


async def test_an_echo_tells_of_one_token_more_than_the_prompt_has_even_if_it_is_the_end(
    client: Client,
) -> None:
    """lm-eval takes what stands between the context and the last entry: vLLM's way of telling."""
    free = await post(
        client,
        COMPLETIONS,
        {"prompt": LONG[:9], "max_tokens": 1, "return_token_ids": True, **GREEDY},
    )
    [first] = free["choices"][0]["token_ids"]
    body = {"prompt": LONG[:9], "echo": True, "logprobs": 1, "max_tokens": 1, **GREEDY}
    ended = await post(client, COMPLETIONS, {**body, "stop_token_ids": [first]})
    [choice] = ended["choices"]
    assert choice["finish_reason"] == "stop"
    assert {len(values) for values in choice["logprobs"].values()} == {10}
