"""Several choices for a prompt: indices, seeds, usage, streams, and what they cost in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from radixserve.server.generation import MAX_SEQUENCES
from tests.server.events import choices_of, parse_events, post, stream, text_of
from tests.server.nearly import assert_nearly_equal

if TYPE_CHECKING:
    from tests.server.conftest import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
PROMPTS = ["Hello", "Goodbye", "Test"]
TURNS = [{"role": "user", "content": "the parrot"}]
SAMPLED: dict[str, Any] = {"temperature": 0.9, "seed": 7, "max_tokens": 12}

CALLS: list[tuple[str, dict[str, Any]]] = [
    (COMPLETIONS, {"prompt": "Once", "n": 3}),
    (COMPLETIONS, {"prompt": PROMPTS, "n": 2}),
    (COMPLETIONS, {"prompt": [[5, 6, 7], [8]], "n": 2, "best_of": 2}),
    (COMPLETIONS, {"prompt": "Once", "n": 3, "logprobs": 2}),
    (COMPLETIONS, {"prompt": PROMPTS, "n": 2, "logprobs": 2, "echo": True}),
    (COMPLETIONS, {"prompt": "Once", "n": 4, "stop": ["e", "th"]}),
    (COMPLETIONS, {"prompt": "a", "n": 2, "return_token_ids": True, "prompt_logprobs": 1}),
    (CHAT, {"messages": TURNS, "n": 3}),
    (CHAT, {"messages": TURNS, "n": 2, "logprobs": True, "top_logprobs": 3}),
    (CHAT, {"messages": TURNS, "n": 2, "return_token_ids": True, "prompt_logprobs": 1}),
]


def usage_counts(usage: dict[str, Any]) -> dict[str, int]:
    """Return the counts that do not depend on what was cached."""
    return {name: usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}


def gathered(chunks: list[dict[str, Any]], index: int, name: str) -> list[Any]:
    """Return one choice's lists of that name, from all chunks, as one."""
    return [item for choice in choices_of(chunks, index) for item in choice.get(name) or []]


def joined_logprobs(parts: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the log-probabilities of a choice's chunks as those of the whole choice."""
    told = [part["logprobs"] for part in parts if part["logprobs"]]
    if not told:
        return None
    return {
        name: None if value is None else [item for one in told for item in one[name]]
        for name, value in told[0].items()
    }


@pytest.mark.parametrize(("path", "body"), CALLS)
async def test_a_stream_equals_the_whole_answer(
    path: str, body: dict[str, Any], client: Client
) -> None:
    body = {**body, **SAMPLED}
    whole = await post(client, path, body)
    chunks = await stream(client, path, {**body, "stream_options": {"include_usage": True}})
    assert {choice["index"] for chunk in chunks for choice in chunk["choices"]} == set(
        range(len(whole["choices"]))
    )
    for choice in whole["choices"]:
        parts = choices_of(chunks, choice["index"])
        assert "".join(map(text_of, parts)) == text_of(choice)
        assert [bool(part["finish_reason"]) for part in parts] == [False] * (len(parts) - 1) + [
            True
        ]
        assert parts[-1]["finish_reason"] == choice["finish_reason"]
        assert text_of(parts[-1]) == ""
        assert_nearly_equal(joined_logprobs(parts), choice["logprobs"])
        assert gathered(chunks, choice["index"], "token_ids") == choice.get("token_ids", [])
    assert usage_counts(chunks[-1]["usage"]) == usage_counts(whole["usage"])


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("prompts", [PROMPTS, [[72, 70, 5], [9], [10, 11]]])
async def test_choices_are_numbered_prompt_by_prompt(
    prompts: list[Any], streams: bool, client: Client
) -> None:
    body = {"prompt": prompts, "n": 2, "max_tokens": 5, "temperature": 0, "ignore_eos": True}
    texts: dict[int, str]
    if streams:
        chunks = await stream(client, COMPLETIONS, body)
        texts = {i: "".join(map(text_of, choices_of(chunks, i))) for i in range(6)}
        assert {choice["index"] for chunk in chunks for choice in chunk["choices"]} == set(range(6))
    else:
        choices = (await post(client, COMPLETIONS, body))["choices"]
        assert [choice["index"] for choice in choices] == list(range(6))
        texts = {choice["index"]: choice["text"] for choice in choices}
    for place, prompt in enumerate(prompts):
        single = await post(client, COMPLETIONS, {**body, "prompt": prompt, "n": 1})
        assert [texts[2 * place], texts[2 * place + 1]] == [single["choices"][0]["text"]] * 2


async def test_each_prompt_is_counted_once_and_every_output(client: Client) -> None:
    body = {"max_tokens": 4, "ignore_eos": True, "temperature": 0}
    singles = [await post(client, COMPLETIONS, {"prompt": one, **body}) for one in PROMPTS]
    answer = await post(client, COMPLETIONS, {"prompt": PROMPTS, "n": 3, **body})
    usage = answer["usage"]
    assert usage["prompt_tokens"] == sum(one["usage"]["prompt_tokens"] for one in singles)
    assert usage["completion_tokens"] == 3 * 3 * 4
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["completion_tokens_details"] == {"forced_tokens": 0}


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_choices_have_the_seeds_after_the_first(path: str, client: Client) -> None:
    body = {"prompt": "Once"} if path == COMPLETIONS else {"messages": TURNS}
    together = await post(client, path, {**body, **SAMPLED, "n": 3})
    for place, choice in enumerate(together["choices"]):
        alone = await post(client, path, {**body, **SAMPLED, "seed": SAMPLED["seed"] + place})
        assert text_of(alone["choices"][0]) == text_of(choice)


async def test_choices_without_a_seed_differ(client: Client) -> None:
    body = {"prompt": "Once", "n": 8, "temperature": 1.5, "max_tokens": 16, "ignore_eos": True}
    choices = (await post(client, COMPLETIONS, body))["choices"]
    assert len({choice["text"] for choice in choices}) == 8


async def test_a_fresh_prompt_counts_nothing_as_cached_although_its_choices_share_it(
    client: Client,
) -> None:
    prompt = [4 + (13 * i * i + 5 * i) % 300 for i in range(100)]
    body = {"prompt": prompt, "n": 4, "max_tokens": 4, "ignore_eos": True, "cache_salt": "fresh"}
    cold = await post(client, COMPLETIONS, body)
    warm = await post(client, COMPLETIONS, body)
    assert cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] >= 96


async def test_best_of_returns_the_likeliest_outputs_in_order(client: Client) -> None:
    body = {"prompt": "Once", "temperature": 1.2, "seed": 5, "max_tokens": 10, "ignore_eos": True}
    everything = await post(client, COMPLETIONS, {**body, "n": 6, "logprobs": 0})
    best = await post(client, COMPLETIONS, {**body, "n": 2, "best_of": 6})

    def mean(choice: dict[str, Any]) -> float:
        values = choice["logprobs"]["token_logprobs"]
        return float(sum(values) / len(values))

    ranked = sorted(everything["choices"], key=mean, reverse=True)
    assert [choice["text"] for choice in best["choices"]] == [one["text"] for one in ranked[:2]]
    assert [choice["index"] for choice in best["choices"]] == [0, 1]
    assert [choice["logprobs"] for choice in best["choices"]] == [None, None]
    assert best["usage"]["completion_tokens"] == 6 * 10
    assert best["usage"]["prompt_tokens"] == everything["usage"]["prompt_tokens"]


async def test_best_of_several_prompts_keeps_each_prompts_own(client: Client) -> None:
    body = {"temperature": 1.2, "seed": 5, "max_tokens": 6, "n": 2, "best_of": 3}
    together = await post(client, COMPLETIONS, {"prompt": PROMPTS, **body})
    assert [choice["index"] for choice in together["choices"]] == list(range(6))
    for place, prompt in enumerate(PROMPTS):
        alone = await post(client, COMPLETIONS, {"prompt": prompt, **body})
        pair = together["choices"][2 * place : 2 * place + 2]
        assert [one["text"] for one in pair] == [one["text"] for one in alone["choices"]]


async def test_a_call_may_not_ask_for_too_many_sequences(client: Client) -> None:
    too_many = ["a"] * (MAX_SEQUENCES // 128 + 1)
    for fields in ({"n": 128}, {"n": 1, "best_of": 128}):
        body = {"prompt": too_many, "max_tokens": 1, **fields}
        response = await client.post(COMPLETIONS, json=body)
        told = (await response.json())["error"]
        assert (response.status, told["param"]) == (400, "n")
        assert str(MAX_SEQUENCES) in told["message"]


async def test_running_usage_is_in_every_chunk_and_grows(client: Client) -> None:
    body = {"prompt": "Once", "n": 2, "max_tokens": 6, "ignore_eos": True}
    options = {"continuous_usage_stats": True}
    chunks = await stream(client, COMPLETIONS, {**body, "stream_options": options})
    assert all(chunk["choices"] for chunk in chunks)
    totals = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert totals == sorted(totals)
    assert totals[-1] == 12
    both = {**options, "include_usage": True}
    chunks = await stream(client, COMPLETIONS, {**body, "stream_options": both})
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 12


async def test_the_events_of_choices_interleave(client: Client) -> None:
    body = {"prompt": "Once", "n": 2, "max_tokens": 30, "ignore_eos": True, "temperature": 0}
    response = await client.post(COMPLETIONS, json={**body, "stream": True})
    chunks = parse_events(await response.read())
    order = [choice["index"] for chunk in chunks for choice in chunk["choices"]]
    assert order != sorted(order)
