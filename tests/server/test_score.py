"""``POST /v1/score``: how likely each option is after one prompt."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from tests.server.events import post

if TYPE_CHECKING:
    from radixserve.engine.async_engine import AsyncEngine
    from tests.server.conftest import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROMPT = "The capital of France is"
OPTIONS = [" Paris", " Rome", " the tree", " the"]
CLOSE = 1e-5


async def echoed(client: Client, prompt: str, option: str) -> list[float]:
    """Return the log-probabilities that completions tell of an option's tokens."""
    body = {"prompt": prompt + option, "max_tokens": 0, "echo": True, "logprobs": 0}
    told = (await post(client, "/v1/completions", body))["choices"][0]["logprobs"]
    first = (await post(client, "/tokenize", {"prompt": prompt}))["count"]
    return list(told["token_logprobs"][first:])


async def test_scores_are_those_that_completions_echo(client: Client) -> None:
    answer = await post(client, "/v1/score", {"prompt": PROMPT, "options": OPTIONS})
    for text, option in zip(OPTIONS, answer["options"], strict=True):
        expected = await echoed(client, PROMPT, text)
        assert option["text"] == text
        assert option["token_logprobs"] == pytest.approx(expected, abs=CLOSE)
        assert option["logprob"] == pytest.approx(sum(expected), abs=CLOSE)
        assert option["mean_logprob"] == pytest.approx(sum(expected) / len(expected), abs=CLOSE)
    probabilities = [option["probability"] for option in answer["options"]]
    assert sum(probabilities) == pytest.approx(1)
    weights = [math.exp(option["logprob"]) for option in answer["options"]]
    assert probabilities == pytest.approx([weight / sum(weights) for weight in weights])
    assert answer["best"] == probabilities.index(max(probabilities))


@pytest.mark.parametrize("normalization", ["sum", "mean", "bytes"])
async def test_options_are_compared_as_asked(client: Client, normalization: str) -> None:
    body = {"prompt": PROMPT, "options": OPTIONS, "normalization": normalization}
    answer = await post(client, "/v1/score", body)
    for text, option in zip(OPTIONS, answer["options"], strict=True):
        divisor = {"sum": 1, "mean": len(option["token_ids"]), "bytes": len(text.encode())}
        assert option["score"] == pytest.approx(option["logprob"] / divisor[normalization])


async def test_ids_and_texts_are_the_same(client: Client, shared_engine: AsyncEngine) -> None:
    by_text = await post(client, "/v1/score", {"prompt": PROMPT, "options": OPTIONS})
    ids = shared_engine.tokenizer.encode(PROMPT)
    options = [option["token_ids"] for option in by_text["options"]]
    by_ids = await post(client, "/v1/score", {"prompt": ids, "options": options})
    assert [option["logprob"] for option in by_ids["options"]] == pytest.approx(
        [option["logprob"] for option in by_text["options"]], abs=CLOSE
    )
    assert [option["text"] for option in by_ids["options"]] == OPTIONS


async def test_an_option_that_changes_the_prompts_tokens_stands_alone(
    client: Client, shared_engine: AsyncEngine
) -> None:
    encode = shared_engine.tokenizer.encode
    assert encode("th" + "e")[: len(encode("th"))] != encode("th")
    answer = await post(client, "/v1/score", {"prompt": "th", "options": ["e"]})
    assert answer["options"][0]["token_ids"] == encode("e", add_special_tokens=False)


async def test_the_prompt_counts_as_cached_for_all_but_the_first(client: Client) -> None:
    prompt = "def add(a, b): the answer is in the order of the letters " * 2
    body = {"prompt": prompt, "options": OPTIONS, "cache_salt": "fresh"}
    usage = (await post(client, "/v1/score", body))["usage"]
    details = usage["prompt_tokens_details"]
    count = (await post(client, "/tokenize", {"prompt": prompt}))["count"]
    assert details["cached_tokens"] + details["computed_tokens"] == usage["prompt_tokens"]
    # Each option computes again, at most, what the prompt's last block is filled with.
    assert details["computed_tokens"] <= count + len(OPTIONS) * (16 + 4)


@pytest.mark.parametrize(
    ("changes", "status", "param"),
    [
        ({"options": []}, 400, "options"),
        ({"options": [""]}, 400, "options[0]"),
        ({"options": [[]]}, 400, "options[0]"),
        ({"options": ["a"] * 1000}, 400, "options"),
        ({"options": ["a", [9_999_999]]}, 400, "options[1]"),
        ({"options": ["a", "b " * 2000]}, 400, "options[1]"),
        ({"prompt": ""}, 400, "prompt"),
        ({"prompt": None}, 400, "prompt"),
        ({"prompt": [9_999_999]}, 400, "prompt"),
        ({"normalization": "median"}, 400, "normalization"),
        ({"option": "a"}, 400, "option"),
        ({"model": "other"}, 404, "model"),
    ],
)
async def test_what_is_wrong_is_named(
    client: Client, changes: dict[str, Any], status: int, param: str
) -> None:
    body = {"prompt": PROMPT, "options": OPTIONS, **changes}
    response = await client.post("/v1/score", json=body)
    error = (await response.json())["error"]
    assert (response.status, error["param"]) == (status, param), error
