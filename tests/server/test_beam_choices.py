"""Beam search over HTTP: the engine's own search, as choices, in one piece and as events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from radixserve.engine.beam_search import beam_search
from radixserve.engine.beams import BeamParams
from tests.kit.engines import ask
from tests.server.events import choices_of, post, stream, text_of

if TYPE_CHECKING:
    from radixserve.engine.async_engine import AsyncEngine
    from tests.server.conftest import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
PROMPT = [5 + (31 * i * i + 3 * i) % 290 for i in range(40)]
BODY: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 12, "return_token_ids": True}


@pytest.mark.parametrize(
    ("fields", "params"),
    [
        ({"use_beam_search": True, "n": 3}, {"width": 3}),
        ({"beam_width": 4, "n": 2}, {"width": 4}),
        ({"beam_width": 4, "n": 4, "length_penalty": 0.5}, {"width": 4, "length_penalty": 0.5}),
        (
            {"beam_width": 3, "n": 3, "early_stopping": True, "stop_token_ids": [70, 71, 90]},
            {"width": 3, "early_stopping": True, "stop_token_ids": frozenset({2, 70, 71, 90})},
        ),
        ({"beam_width": 2, "ignore_eos": True}, {"width": 2, "stop_token_ids": frozenset()}),
    ],
)
async def test_choices_are_the_best_of_the_engines_search(
    fields: dict[str, Any], params: dict[str, Any], client: Client, shared_engine: AsyncEngine
) -> None:
    defaults: dict[str, Any] = {"max_tokens": 12, "stop_token_ids": frozenset({2})}
    found = await beam_search(shared_engine, ask(PROMPT), BeamParams(**{**defaults, **params}))
    answer = await post(client, COMPLETIONS, {**BODY, **fields})
    expected = [list(one.tokens) for one in found.hypotheses[: fields.get("n", 1)]]
    assert [choice["token_ids"] for choice in answer["choices"]] == expected
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(expected)))
    assert answer["usage"]["completion_tokens"] == sum(map(len, expected))
    assert answer["usage"]["prompt_tokens"] == len(PROMPT)


async def test_several_prompts_are_searched_side_by_side(client: Client) -> None:
    body = {"max_tokens": 6, "beam_width": 2, "n": 2}
    together = await post(client, COMPLETIONS, {**body, "prompt": ["Once", "the tree"]})
    texts = [choice["text"] for choice in together["choices"]]
    for place, prompt in enumerate(["Once", "the tree"]):
        alone = await post(client, COMPLETIONS, {**body, "prompt": prompt})
        assert texts[2 * place : 2 * place + 2] == [one["text"] for one in alone["choices"]]


@pytest.mark.parametrize(
    ("path", "body"),
    [(COMPLETIONS, BODY), (CHAT, {"messages": [{"role": "user", "content": "hi"}]})],
)
async def test_a_stream_equals_the_whole_answer(
    path: str, body: dict[str, Any], client: Client
) -> None:
    body = {**body, "beam_width": 3, "n": 2, "max_tokens": 8}
    whole = await post(client, path, body)
    chunks = await stream(client, path, {**body, "stream_options": {"include_usage": True}})
    for choice in whole["choices"]:
        parts = choices_of(chunks, choice["index"])
        assert "".join(map(text_of, parts)) == text_of(choice)
        assert [part["finish_reason"] for part in parts if part["finish_reason"]] == [
            choice["finish_reason"]
        ]
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


async def test_a_search_leaves_nothing_behind(client: Client, shared_engine: AsyncEngine) -> None:
    answer = await post(client, COMPLETIONS, {**BODY, "beam_width": 4, "echo": True})
    assert answer["choices"][0]["finish_reason"] in ("stop", "length")
    stats = shared_engine.stats()
    assert stats.num_running == stats.num_waiting == 0
    assert stats.private_blocks == 0


async def test_a_search_does_not_follow_a_grammar(client: Client) -> None:
    body = {**BODY, "beam_width": 2, "response_format": {"type": "json_object"}}
    response = await client.post(COMPLETIONS, json=body)
    told = (await response.json())["error"]
    assert (response.status, told["param"]) == (400, "response_format")
    assert "beam" in told["message"]
