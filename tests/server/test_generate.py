"""``POST /generate``: text or token ids in, text and token ids out, one or many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.server.events import post, stream

if TYPE_CHECKING:
    from radixserve.engine.async_engine import AsyncEngine
    from tests.server.conftest import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")

GREEDY = {"max_new_tokens": 12, "temperature": 0}


async def generate(client: Client, **body: Any) -> Any:
    response = await client.post("/generate", json=body)
    answer = await response.json()
    assert response.status == 200, answer
    return answer


async def test_text_and_its_ids_give_what_a_completion_gives(
    client: Client, shared_engine: AsyncEngine
) -> None:
    completion = await post(
        client, "/v1/completions", {"prompt": "Once", "temperature": 0, "max_tokens": 12}
    )
    by_text = await generate(client, text="Once", sampling_params=GREEDY)
    ids = shared_engine.tokenizer.encode("Once")
    by_ids = await generate(client, input_ids=ids, sampling_params=GREEDY)

    assert by_text["text"] == by_ids["text"] == completion["choices"][0]["text"]
    assert by_text["output_ids"] == by_ids["output_ids"]
    facts = by_text["meta_info"]
    assert facts["prompt_tokens"] == len(ids)
    assert facts["completion_tokens"] == len(by_text["output_ids"])
    assert facts["cached_tokens"] >= 0
    assert facts["finish_reason"]["type"] in ("stop", "length")


@pytest.mark.parametrize("n", [1, 2])
async def test_a_stream_tells_what_is_new(client: Client, n: int) -> None:
    sampling = {"max_new_tokens": 10, "temperature": 0.8, "seed": 3, "n": n}
    body = {
        "text": ["Once", "the parrot said"],
        "sampling_params": sampling,
        "return_logprob": True,
        "top_logprobs_num": 2,
        "logprob_start_len": 0,
    }
    whole = await generate(client, **body)
    events = await stream(client, "/generate", body)

    assert len(whole) == 2 * n
    for index, answer in enumerate(whole):
        mine = [event for event in events if event["index"] == index]
        facts = [event["meta_info"] for event in mine]
        assert "".join(event["text"] for event in mine) == answer["text"]
        assert [i for event in mine for i in event["output_ids"]] == answer["output_ids"]
        assert [fact["finish_reason"] for fact in facts[:-1]] == [None] * (len(mine) - 1)
        assert facts[-1]["finish_reason"] == answer["meta_info"]["finish_reason"]
        told = [triple for fact in facts for triple in fact["output_token_logprobs"]]
        assert told == close(answer["meta_info"]["output_token_logprobs"])
        inputs = [fact["input_token_logprobs"] for fact in facts if "input_token_logprobs" in fact]
        assert len(inputs) == 1
        assert [entry[1] for entry in inputs[0]] == [
            entry[1] for entry in answer["meta_info"]["input_token_logprobs"]
        ]


def close(triples: list[list[Any]]) -> list[list[Any]]:
    """Triples that are equal to these up to the order in which floats are summed."""
    return [[pytest.approx(value, abs=1e-4), *rest] for value, *rest in triples]


async def test_log_probabilities_are_told_where_asked_for(client: Client) -> None:
    plain = await generate(client, text="the parrot", sampling_params=GREEDY)
    told = await generate(
        client,
        text="the parrot",
        sampling_params=GREEDY,
        return_logprob=True,
        logprob_start_len=0,
        top_logprobs_num=3,
        return_text_in_logprobs=True,
    )
    facts = told["meta_info"]
    assert not [name for name in plain["meta_info"] if "logprobs" in name]
    assert told["output_ids"][: len(facts["output_token_logprobs"])] == [
        token for _, token, _ in facts["output_token_logprobs"]
    ]
    assert len(facts["input_token_logprobs"]) == facts["prompt_tokens"]
    assert facts["input_token_logprobs"][0][0] is None
    assert all(value <= 0 for value, _, _ in facts["input_token_logprobs"][1:])
    assert all(len(tops) == 3 for tops in facts["output_top_logprobs"])
    assert all(isinstance(text, str) for _, _, text in facts["output_token_logprobs"])
    best = [tops[0] for tops in facts["output_top_logprobs"]]
    assert best == facts["output_token_logprobs"]


async def test_what_ended_the_output_is_named(client: Client) -> None:
    free = await generate(client, text="Once", sampling_params=GREEDY)
    token = free["output_ids"][3]
    by_token = await generate(
        client, text="Once", sampling_params={**GREEDY, "stop_token_ids": [token]}
    )
    place = free["output_ids"].index(token)
    assert by_token["meta_info"]["finish_reason"] == {"type": "stop", "matched": token}
    assert by_token["output_ids"] == free["output_ids"][: place + 1]
    stop = free["text"][2:4]
    by_text = await generate(client, text="Once", sampling_params={**GREEDY, "stop": stop})
    assert by_text["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert by_text["text"] == free["text"][: free["text"].index(stop)]


async def test_requests_have_the_names_given(client: Client) -> None:
    one = await generate(client, text="Once", rid="job-1", sampling_params=GREEDY)
    many = await generate(client, text=["a", "b"], rid=["x", "y"], sampling_params=GREEDY)
    assert one["meta_info"]["id"] == "job-1"
    assert [answer["meta_info"]["id"] for answer in many] == ["x", "y"]
    single = await generate(client, text=["Once"], sampling_params=GREEDY)
    assert isinstance(single, list)


async def test_an_output_keeps_to_its_grammar(client: Client) -> None:
    sampling = {"max_new_tokens": 12, "regex": "[ab]{3}"}
    answer = await generate(client, text="Once", sampling_params=sampling)
    assert len(answer["text"]) == 3
    assert set(answer["text"]) <= {"a", "b"}
    assert answer["meta_info"]["finish_reason"]["type"] == "stop"


async def test_a_name_in_use_is_refused(client: Client) -> None:
    response = await client.post("/generate", json={"text": ["a", "b"], "rid": ["x", "x"]})
    assert response.status == 400


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "text"),
        ({"text": "a", "input_ids": [1]}, "input_ids"),
        ({"text": 3}, "text"),
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": [[1], [9_999_999]]}, "input_ids[1]"),
        ({"input_ids": [1, "a"]}, "input_ids[1]"),
        (
            {"text": "a", "sampling_params": {"max_new_tokens": -1}},
            "sampling_params.max_new_tokens",
        ),
        ({"text": "a", "sampling_params": {"temperature": 9}}, "sampling_params.temperature"),
        ({"text": "a", "sampling_params": {"nonsense": 9}}, "sampling_params.nonsense"),
        ({"text": "a", "sampling_params": {"prompt": "b"}}, "sampling_params.prompt"),
        ({"text": "a", "sampling_params": {"stream": True}}, "sampling_params.stream"),
        (
            {"text": "a", "sampling_params": {"max_new_tokens": 1, "max_tokens": 2}},
            "sampling_params.max_tokens",
        ),
        ({"text": "a", "sampling_params": {"regex": "("}}, "sampling_params.regex"),
        ({"text": "a", "cache_salt": "x", "extra_key": "y"}, "extra_key"),
        ({"text": ["a", "b"], "rid": ["x"]}, "rid"),
        ({"text": "a", "lora_path": "x"}, "lora_path"),
        ({"text": "a", "returns": True}, "returns"),
    ],
)
async def test_what_is_wrong_is_named_as_the_caller_wrote_it(
    client: Client, body: dict[str, Any], param: str
) -> None:
    response = await client.post("/generate", json=body)
    error = (await response.json())["error"]
    assert (response.status, error["param"]) == (400, param), error
