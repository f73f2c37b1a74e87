"""Requests that have ended and are kept: who goes on from them computes exactly what is new."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from radixserve.types import ReqId, SamplingParams
from tests.kit.deltas import run_merged
from tests.kit.engines import ask, assert_idle, until
from tests.kit.streams import idle, read

if TYPE_CHECKING:
    from radixserve.engine.request import GenerateRequest
    from radixserve.engine.sync_engine import Engine
    from tests.engine.conftest import MakeEngine, StartEngine

PROMPT = [3 + (41 * i * i + 7 * i) % 311 for i in range(45)]
MORE = [7, 250, 31, 8]
PARAMS = SamplingParams(temperature=0.8, max_tokens=9, seed=4)


def parent_of(prompt: list[int] = PROMPT, name: str = "parent") -> GenerateRequest:
    return ask(prompt, params=PARAMS, is_fork_point=True, request_id=name)


def counting(engine: Engine) -> list[int]:
    """The tokens of each forward pass from now on."""
    counts: list[int] = []
    execute = engine.core._runner.execute

    def count(plan: Any) -> Any:
        counts.append(plan.num_tokens)
        return execute(plan)

    engine.core._runner.execute = count  # type: ignore[method-assign]
    return counts


def uncached(make_engine: MakeEngine, request: GenerateRequest) -> tuple[int, ...]:
    [alone] = run_merged(make_engine(prefix_cache=False), [replace(request, fork_of="")])
    return alone.token_ids


def forget(engine: Engine, name: str) -> None:
    engine.core.end(ReqId(name))
    while engine.has_work:
        engine.step()


@pytest.mark.parametrize("block_size", [1, 4, 16, 64])
def test_a_child_computes_its_new_tokens_alone(block_size: int, make_engine: MakeEngine) -> None:
    engine = make_engine(block_size=block_size, num_blocks=2048 // block_size)
    [parent] = run_merged(engine, [parent_of()])
    prompt = [*PROMPT, *parent.token_ids, *MORE]
    child = ask(prompt, params=replace(PARAMS, seed=5), fork_of="parent")
    counts = counting(engine)

    [found] = run_merged(engine, [child])

    # The parent's last token was chosen and never computed; the child's last one neither.
    assert sum(counts) == 1 + len(MORE) + len(found.token_ids) - 1
    assert found.usage.cached_tokens == len(prompt) - len(MORE) - 1
    assert found.token_ids == uncached(make_engine, child)
    forget(engine, "parent")
    assert_idle(engine.core)


def test_several_children_of_one_fork_point(make_engine: MakeEngine) -> None:
    engine = make_engine()
    [parent] = run_merged(engine, [parent_of()])
    prompt = [*PROMPT, *parent.token_ids]
    children = [
        ask([*prompt, 100 + i], params=replace(PARAMS, seed=i), fork_of="parent") for i in range(5)
    ]

    found = run_merged(engine, children)

    for child, delta in zip(children, found, strict=True):
        assert delta.usage.cached_tokens == len(prompt) - 1
        assert delta.token_ids == uncached(make_engine, child)
    forget(engine, "parent")
    assert_idle(engine.core)


def test_a_fork_point_that_had_to_go_changes_no_token(make_engine: MakeEngine) -> None:
    engine = make_engine(num_blocks=8, block_size=16)
    [parent] = run_merged(engine, [parent_of()])
    run_merged(engine, [ask([9] * 100, max_tokens=8)])
    assert engine.stats().private_blocks == 0
    child = ask([*PROMPT, *parent.token_ids, *MORE], params=PARAMS, fork_of="parent")

    [found] = run_merged(engine, [child])

    assert found.token_ids == uncached(make_engine, child)
    assert_idle(engine.core)


def test_a_request_that_a_stop_string_ended_can_be_gone_on_from(make_engine: MakeEngine) -> None:
    engine = make_engine()
    params = SamplingParams(temperature=0.0, max_tokens=12)
    [free] = run_merged(engine, [ask(PROMPT, params=params)])
    stop = free.text[3:5]
    request = ask(PROMPT, params=params, stop=(stop,), is_fork_point=True, request_id="parent")
    [parent] = run_merged(engine, [request])
    assert parent.stop_reason == stop
    prompt = [*PROMPT, *parent.token_ids, *MORE]
    child = ask(prompt, params=params, fork_of="parent")

    [found] = run_merged(engine, [child])

    assert found.usage.cached_tokens >= len(PROMPT) + len(parent.token_ids) - 1
    assert found.token_ids == uncached(make_engine, child)
    forget(engine, "parent")
    assert_idle(engine.core)


def test_another_salt_shares_nothing_with_a_fork_point(make_engine: MakeEngine) -> None:
    engine = make_engine()
    [parent] = run_merged(engine, [parent_of()])
    child = ask([*PROMPT, *parent.token_ids], params=PARAMS, fork_of="parent", cache_salt="x")

    [found] = run_merged(engine, [child])

    assert found.usage.cached_tokens == 0
    assert found.token_ids == uncached(make_engine, child)


async def test_forgetting_gives_the_block_back_while_the_engine_is_idle(
    start_engine: StartEngine,
) -> None:
    engine = await start_engine()
    await read(engine, parent_of())
    assert engine.stats().private_blocks == 1

    engine.forget(ReqId("parent"))

    await until(lambda: engine.stats().private_blocks == 0)
    engine.forget(ReqId("parent"))
    engine.forget(ReqId("nobody"))
    await idle(engine)


async def test_stopping_leaves_no_fork_point_behind(start_engine: StartEngine) -> None:
    engine = await start_engine()
    for i in range(3):
        await read(engine, parent_of([*PROMPT, i], f"parent {i}"))

    await engine.stop()

    assert_idle(engine.core)


async def test_leaving_a_stream_early_keeps_no_fork_point(start_engine: StartEngine) -> None:
    engine = await start_engine()
    async with engine.submit(parent_of()) as stream:
        await anext(aiter(stream))

    await idle(engine)
