"""Log-probabilities over HTTP: right by another computation, whatever is cached, in every shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.likelihood import logprobs_of, next_token_logprobs
from tests.server.events import choices_of, post, stream, text_of
from tests.server.nearly import LOGPROB_TOLERANCE, assert_nearly_equal

if TYPE_CHECKING:
    from radixserve.engine.async_engine import AsyncEngine
    from tests.server.conftest import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
PROMPT = [12 + (29 * i * i + 7 * i) % 300 for i in range(90)]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}


def prompt_of(start: int, length: int) -> list[int]:
    """Return a prompt that no other test has."""
    return [3 + (41 * i * i + 17 * i + start) % 300 for i in range(length)]


async def test_the_outputs_are_those_of_a_model_without_a_cache(
    client: Client, shared_engine: AsyncEngine
) -> None:
    body = {"prompt": PROMPT, "logprobs": 5, "return_token_ids": True, **GREEDY}
    [choice] = (await post(client, COMPLETIONS, body))["choices"]
    told, ids = choice["logprobs"], choice["token_ids"]
    rows = next_token_logprobs(shared_engine.core, PROMPT + ids)[len(PROMPT) - 1 : -1]
    expected = [float(row[token]) for row, token in zip(rows, ids, strict=True)]
    assert told["token_logprobs"] == pytest.approx(expected, abs=LOGPROB_TOLERANCE)
    for row, tops in zip(rows, told["top_logprobs"], strict=True):
        best = row.topk(5).values.tolist()
        assert list(tops.values()) == pytest.approx(best, abs=LOGPROB_TOLERANCE)


@pytest.mark.parametrize("fields", [{"temperature": 1.7, "seed": 3}, {"presence_penalty": 2.0}])
async def test_they_are_the_models_own_before_temperature_and_penalties(
    fields: dict[str, Any], client: Client, shared_engine: AsyncEngine
) -> None:
    body = {"prompt": PROMPT, "logprobs": 0, "return_token_ids": True, **GREEDY, **fields}
    [choice] = (await post(client, COMPLETIONS, body))["choices"]
    expected = logprobs_of(shared_engine.core, PROMPT + choice["token_ids"])[len(PROMPT) - 1 :]
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(expected, abs=LOGPROB_TOLERANCE)
    for tops, name, value in zip(
        choice["logprobs"]["top_logprobs"],
        choice["logprobs"]["tokens"],
        choice["logprobs"]["token_logprobs"],
        strict=True,
    ):
        assert tops == {name: value}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (COMPLETIONS, {"prompt": prompt_of(1, 100), "logprobs": 3}),
        (COMPLETIONS, {"prompt": prompt_of(2, 100), "logprobs": 3, "echo": True}),
        (COMPLETIONS, {"prompt": prompt_of(3, 100), "prompt_logprobs": 2}),
        (COMPLETIONS, {"prompt": prompt_of(4, 100), "prompt_logprobs": 2, "logprobs": 1}),
        (COMPLETIONS, {"prompt": prompt_of(5, 97), "prompt_logprobs": 0}),
        (CHAT, {"messages": [{"role": "user", "content": "a" * 80}], "logprobs": True}),
        (
            CHAT,
            {
                "messages": [{"role": "user", "content": "b" * 80}],
                "logprobs": True,
                "top_logprobs": 3,
                "prompt_logprobs": 1,
            },
        ),
    ],
)
async def test_a_cache_hit_changes_nothing(
    path: str, fields: dict[str, Any], client: Client
) -> None:
    cold = await post(client, path, {**fields, **GREEDY})
    warm = await post(client, path, {**fields, **GREEDY})
    assert cold["usage"]["prompt_tokens_details"]["cached_tokens"] < 40
    scores_prompt = "prompt_logprobs" in fields or "echo" in fields
    assert (warm["usage"]["prompt_tokens_details"]["cached_tokens"] == 0) == scores_prompt
    assert_nearly_equal(warm["choices"], cold["choices"])
    assert_nearly_equal(warm.get("prompt_logprobs"), cold.get("prompt_logprobs"))


@pytest.mark.parametrize("start", [1, 17, 64, 99, 100, 5000])
async def test_what_is_cached_before_the_first_position_asked_for_is_used(
    start: int, client: Client, shared_engine: AsyncEngine
) -> None:
    prompt = prompt_of(6, 100)
    body = {"prompt": prompt, "prompt_logprobs": 2, **GREEDY, "max_tokens": 20}
    everything = (await post(client, COMPLETIONS, body))["choices"][0]["prompt_logprobs"]
    answer = await post(client, COMPLETIONS, {**body, "prompt_logprob_start": start})
    told = answer["choices"][0]["prompt_logprobs"]
    assert_nearly_equal(told, everything[start:])
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == min(start - 1, 99)
    expected = logprobs_of(shared_engine.core, prompt)[start - 1 :]
    for token, entry, value in zip(prompt[start:], told, expected, strict=True):
        assert entry[str(token)]["logprob"] == pytest.approx(value, abs=LOGPROB_TOLERANCE)


async def test_prompt_logprobs_have_vllms_shape(client: Client) -> None:
    body = {"prompt": PROMPT, "prompt_logprobs": 2, "max_tokens": 1}
    [choice] = (await post(client, COMPLETIONS, body))["choices"]
    first, *others = choice["prompt_logprobs"]
    assert first is None
    assert len(others) == len(PROMPT) - 1
    for token, entry in zip(PROMPT[1:], others, strict=True):
        assert str(token) in entry
        assert 2 <= len(entry) <= 3
        assert {1, 2} <= {one["rank"] for one in entry.values()}
        assert {tuple(one) for one in entry.values()} == {("logprob", "rank", "decoded_token")}
        by_rank = sorted(entry.values(), key=lambda one: one["rank"])
        assert [one["logprob"] for one in by_rank] == sorted(
            (one["logprob"] for one in by_rank), reverse=True
        )


async def test_prompt_logprobs_of_a_conversation_stand_beside_its_choices(client: Client) -> None:
    body = {
        "messages": [{"role": "user", "content": "the parrot"}],
        "n": 2,
        "prompt_logprobs": 0,
        "return_token_ids": True,
        "max_tokens": 2,
    }
    answer = await post(client, CHAT, body)
    assert len(answer["prompt_logprobs"]) == len(answer["prompt_token_ids"])
    assert len(answer["prompt_token_ids"]) == answer["usage"]["prompt_tokens"]
    assert all("prompt_logprobs" not in choice for choice in answer["choices"])
    chunks = await stream(client, CHAT, body)
    told = [chunk for chunk in chunks if "prompt_logprobs" in chunk]
    assert len(told) == 2  # with the first chunk of each choice
    assert_nearly_equal(told[0]["prompt_logprobs"], answer["prompt_logprobs"])


async def test_tokens_join_to_the_text_and_offsets_say_where(client: Client) -> None:
    body = {"prompt": "Once", "logprobs": 1, "temperature": 1.5, "seed": 2, "max_tokens": 60}
    [choice] = (await post(client, COMPLETIONS, {**body, "ignore_eos": True}))["choices"]
    told, text = choice["logprobs"], choice["text"]
    assert len({len(values) for values in told.values()}) == 1
    assert told["text_offset"][0] == 0
    assert told["text_offset"] == sorted(told["text_offset"])
    for name, at in zip(told["tokens"], told["text_offset"], strict=True):
        if not name.startswith("bytes:") and "<|" not in name:
            assert text[at : at + len(name)] == name


async def test_tokens_may_be_written_as_ids(client: Client) -> None:
    body = {"prompt": PROMPT, "logprobs": 2, "return_token_ids": True, **GREEDY}
    body["return_tokens_as_token_ids"] = True
    [choice] = (await post(client, COMPLETIONS, body))["choices"]
    ids = choice["token_ids"]
    assert choice["logprobs"]["tokens"] == [f"token_id:{token}" for token in ids]
    for tops in choice["logprobs"]["top_logprobs"]:
        assert all(name.removeprefix("token_id:").isdigit() for name in tops)


async def test_chat_tells_tokens_with_their_bytes(client: Client) -> None:
    body = {
        "messages": [{"role": "user", "content": "the parrot"}],
        "logprobs": True,
        "top_logprobs": 4,
        "max_tokens": 20,
        "temperature": 1.5,
        "seed": 4,
        "ignore_eos": True,
        "skip_special_tokens": False,
    }
    [choice] = (await post(client, CHAT, body))["choices"]
    content = choice["logprobs"]["content"]
    assert len(content) == 20
    raw = b"".join(bytes(entry["bytes"]) for entry in content)
    assert raw.decode(errors="replace") == text_of(choice)
    for entry in content:
        assert len(entry["top_logprobs"]) == 4
        values = [top["logprob"] for top in entry["top_logprobs"]]
        assert values == sorted(values, reverse=True)


@pytest.mark.parametrize("include", [False, True])
async def test_a_stop_string_in_a_stream_tells_the_same_tokens_as_in_one_piece(
    include: bool, client: Client
) -> None:
    body = {"prompt": "Once", "logprobs": 2, "return_token_ids": True, **GREEDY, "max_tokens": 40}
    free = (await post(client, COMPLETIONS, body))["choices"][0]
    stop = free["text"][10:13]
    body = {**body, "stop": stop, "include_stop_str_in_output": include}
    [whole] = (await post(client, COMPLETIONS, body))["choices"]
    parts = choices_of(await stream(client, COMPLETIONS, body), 0)
    assert "".join(map(text_of, parts)) == whole["text"]
    tokens = [name for part in parts for name in (part["logprobs"] or {}).get("tokens", [])]
    assert tokens == whole["logprobs"]["tokens"] == free["logprobs"]["tokens"][: len(tokens)]
    assert [token for part in parts for token in part["token_ids"]] == whole["token_ids"]
    assert whole["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (COMPLETIONS, {"prompt": "a", "logprobs": count}, "logprobs")
        for count in (-1, 21, 513, 2_000_000_000)
    ]
    + [
        (
            CHAT,
            {
                "messages": [{"role": "user", "content": "a"}],
                "logprobs": True,
                "top_logprobs": count,
            },
            "top_logprobs",
        )
        for count in (-1, 21, 513, 2_000_000_000)
    ]
    + [
        (COMPLETIONS, {"prompt": "a", name: count}, name)
        for name in ("n", "best_of")
        for count in (0, -1, 100_000)
    ],
)
async def test_counts_out_of_bounds_are_refused_by_name(
    path: str, fields: dict[str, Any], param: str, client: Client
) -> None:
    response = await client.post(path, json=fields)
    told = (await response.json())["error"]
    assert (response.status, told["param"]) == (400, param)
    assert (await client.get("/health")).status == 200


@pytest.mark.parametrize("temperature", [1e-4, 1e-6, 1e-30, 0, 2])
async def test_no_temperature_makes_a_number_that_is_none(
    temperature: float, client: Client
) -> None:
    body = {"prompt": "Once upon", "logprobs": 5, "max_tokens": 8, "seed": 1, "ignore_eos": True}
    [choice] = (await post(client, COMPLETIONS, {**body, "temperature": temperature}))["choices"]
    [greedy] = (await post(client, COMPLETIONS, {**body, "temperature": 0}))["choices"]
    values = [value for tops in choice["logprobs"]["top_logprobs"] for value in tops.values()]
    assert all(isinstance(value, float) and value <= 0 for value in values)
    if temperature < 1:
        assert choice["text"] == greedy["text"]
