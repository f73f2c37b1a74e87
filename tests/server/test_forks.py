"""Calls of ``/generate`` that others go on from: only what is new travels and is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from radixserve.config import HttpConfig, KeyConfig
from radixserve.server.app import build_app
from radixserve.server.forks import Forks
from radixserve.server.state import FORKS
from radixserve.types import ReqId
from tests.kit.engines import assert_idle, until

if TYPE_CHECKING:
    from radixserve.config import EngineConfig
    from radixserve.engine.async_engine import AsyncEngine
    from tests.server.conftest import Client, OpenClient, ServeShared, StartEngine

PROMPT = list(range(20, 70))
MORE = list(range(70, 75))
GREEDY = {"max_new_tokens": 5, "temperature": 0, "ignore_eos": True}


async def generate(client: Client, status: int = 200, *, key: str = "", **body: Any) -> Any:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    body = {"sampling_params": GREEDY, **body}
    response = await client.post("/generate", json=body, headers=headers)
    answer = await response.json()
    assert response.status == status, answer
    return answer


@pytest.fixture
async def engine(engine_config: EngineConfig, start_engine: StartEngine) -> AsyncEngine:
    return await start_engine(engine_config)


@pytest.fixture
async def fresh(engine: AsyncEngine, open_client: OpenClient) -> Client:
    return await open_client(build_app(engine, HttpConfig()))


async def test_only_what_is_new_is_sent_and_computed(fresh: Client, engine: AsyncEngine) -> None:
    one = await generate(fresh, input_ids=PROMPT, radix={"fork": {"id": "a"}})
    known = [*PROMPT, *one["output_ids"]]
    fork = {"id": "b", "parent": "a", "parent_len": len(known)}
    two = await generate(fresh, input_ids=MORE, radix={"fork": fork})
    facts = two["meta_info"]
    assert facts["prompt_tokens"] == len(known) + len(MORE)
    # All that the first call has computed: its last token was sampled, and never run.
    assert facts["cached_tokens"] == len(known) - 1

    whole = await generate(fresh, input_ids=[*known, *MORE])
    assert whole["output_ids"] == two["output_ids"]

    forgotten = await fresh.post("/generate/forget", json={"ids": ["a", "b", "c"]})
    assert await forgotten.json() == {"forgotten": 2}
    await until(lambda: not engine.core.has_work)
    assert_idle(engine.core)


async def test_a_call_may_go_on_from_within_another(fresh: Client) -> None:
    await generate(fresh, input_ids=PROMPT, radix={"fork": {"id": "a"}})
    fork = {"parent": "a", "parent_len": 30}
    branch = await generate(fresh, input_ids=MORE, radix={"fork": fork})
    whole = await generate(fresh, input_ids=[*PROMPT[:30], *MORE])
    assert branch["output_ids"] == whole["output_ids"]


async def test_what_is_not_kept_is_said_so(fresh: Client) -> None:
    fork = {"parent": "nobody", "parent_len": 3}
    answer = await generate(fresh, 404, input_ids=MORE, radix={"fork": fork})
    assert answer["error"]["code"] == "fork_not_found"
    assert answer["error"]["param"] == "radix.fork.parent"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (
            {"input_ids": [1], "radix": {"fork": {"parent": "a", "parent_len": 999}}},
            "radix.fork.parent_len",
        ),
        ({"text": "x", "radix": {"fork": {"parent": "a"}}}, "radix.fork.parent"),
        ({"input_ids": [[1]], "radix": {"fork": {"id": "b"}}}, "radix.fork"),
        (
            {"input_ids": [1], "radix": {"fork": {"id": "b"}}, "sampling_params": {"n": 2}},
            "radix.fork",
        ),
        ({"input_ids": [1], "radix": {"fork": {"ttl_s": 0}}}, "radix.fork.ttl_s"),
    ],
)
async def test_forks_that_make_no_sense_are_refused(
    fresh: Client, body: dict[str, Any], param: str
) -> None:
    await generate(fresh, input_ids=PROMPT, radix={"fork": {"id": "a"}})
    answer = await generate(fresh, 400, **body)
    assert answer["error"]["param"] == param


async def test_the_other_routes_have_no_forks(fresh: Client) -> None:
    response = await fresh.post(
        "/v1/completions", json={"prompt": "a", "radix": {"fork": {"id": "a"}}}
    )
    assert response.status == 400


@pytest.mark.asyncio(loop_scope="session")
async def test_a_name_belongs_to_the_key_that_made_it(serve_shared: ServeShared) -> None:
    client = await serve_shared(HttpConfig(keys=KeyConfig(api_keys=("sk-1", "sk-2"))))
    await generate(client, key="sk-1", input_ids=PROMPT, radix={"fork": {"id": "a"}})
    fork = {"parent": "a", "parent_len": 9}
    await generate(client, 404, key="sk-2", input_ids=MORE, radix={"fork": fork})
    headers = {"Authorization": "Bearer sk-2"}
    told = await client.post("/generate/forget", json={"ids": ["a"]}, headers=headers)
    assert await told.json() == {"forgotten": 0}
    await generate(client, key="sk-1", input_ids=MORE, radix={"fork": fork})


async def test_what_is_kept_goes_when_its_time_is_up(fresh: Client, engine: AsyncEngine) -> None:
    await generate(fresh, input_ids=PROMPT, radix={"fork": {"id": "a", "ttl_s": 0.05}})
    await until(lambda: len(fresh.app[FORKS]) == 0 and not engine.core.has_work)
    assert_idle(engine.core)


async def test_the_oldest_go_where_too_much_is_kept(engine: AsyncEngine) -> None:
    forks = Forks(engine, max_tokens=100)
    for name in "abcd":
        forks.keep("", name, ReqId(name), list(range(40)), ttl_s=60)
    assert len(forks) == 2
    assert forks.find("", "d")[1] == list(range(40))
    assert forks.forget("", "abcd") == 2


async def test_a_call_that_is_given_up_is_not_kept(fresh: Client, engine: AsyncEngine) -> None:
    body = {
        "input_ids": PROMPT,
        "stream": True,
        "sampling_params": {**GREEDY, "max_new_tokens": 900},
        "radix": {"fork": {"id": "a"}},
    }
    response = await fresh.post("/generate", json=body)
    await response.content.readline()
    response.close()
    await until(lambda: not engine.core.has_work)
    assert_idle(engine.core)
    await generate(fresh, 404, input_ids=MORE, radix={"fork": {"parent": "a"}})
