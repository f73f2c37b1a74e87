"""A request that goes on from a running one's tokens: nothing but the last token is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from radixserve.engine.sync_engine import Engine
from radixserve.types import ReqId, SamplingParams
from tests.kit.engines import ask, assert_idle, engine_config, num_ties

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from radixserve.engine.live_requests import StepEvent
    from tests.engine.conftest import MakeEngine

PROMPT = [3 + (37 * i * i + 11 * i) % 317 for i in range(98)]
OUTPUT_LEN = 16
NUM_CHILDREN = 3


def sampled(seed: int) -> SamplingParams:
    return SamplingParams(temperature=0.8, max_tokens=OUTPUT_LEN, seed=seed)


def greedy(seed: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=OUTPUT_LEN, seed=seed)


class Collector:
    """Steps an engine by hand and keeps what each request has produced."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.tokens: dict[ReqId, list[int]] = {}
        self.last: dict[ReqId, StepEvent] = {}

    def add(self, prompt: Sequence[int], params: SamplingParams, **fields: Any) -> ReqId:
        name = self.engine.add(ask(prompt, params=params, **fields))
        self.tokens[name] = []
        return name

    def step_until(self, name: ReqId, num_tokens: int) -> None:
        while len(self.tokens[name]) < num_tokens:
            for event in self.engine.step():
                self.tokens[event.req_id].extend(event.delta.token_ids)
                self.last[event.req_id] = event

    def cached_len(self, name: ReqId) -> int:
        return self.last[name].delta.usage.cached_tokens


def uncached(make_engine: MakeEngine, prompt: Sequence[int], params: SamplingParams) -> list[int]:
    """Return the tokens of a prompt that is alone, nothing of it reused."""
    [completion] = make_engine(prefix_cache=False).run([ask(prompt, params=params)])
    return list(completion.token_ids)


@pytest.mark.parametrize("block_size", [1, 4, 16, 64])
@pytest.mark.parametrize("forked_at", [1, 2, 7, 13])
@pytest.mark.parametrize("params", [greedy, sampled])
def test_children_go_on_from_the_very_last_token(
    params: Any, forked_at: int, block_size: int, make_engine: MakeEngine
) -> None:
    engine = make_engine(num_blocks=2048 // block_size, block_size=block_size)
    collector = Collector(engine)
    parent = collector.add(PROMPT, params(1))
    collector.step_until(parent, forked_at)
    prompt = PROMPT + collector.tokens[parent]

    children = [collector.add(prompt, params(50 + i), fork_of=parent) for i in range(NUM_CHILDREN)]
    for name in (parent, *children):
        collector.step_until(name, OUTPUT_LEN)

    assert_idle(engine.core)
    assert collector.tokens[parent] == uncached(make_engine, PROMPT, params(1))
    for i, child in enumerate(children):
        assert collector.tokens[child] == uncached(make_engine, prompt, params(50 + i))
        assert collector.cached_len(child) == len(prompt) - 1


@pytest.mark.parametrize("how", ["left", "ended", "never was", "another salt"])
def test_a_parent_that_cannot_share_changes_no_token(how: str, make_engine: MakeEngine) -> None:
    engine = make_engine()
    collector = Collector(engine)
    parent = collector.add(PROMPT, greedy(1))
    collector.step_until(parent, OUTPUT_LEN if how == "ended" else 7)
    prompt = PROMPT + collector.tokens[parent][:7]
    if how == "left":
        engine.abort(parent)

    child = collector.add(
        prompt,
        greedy(1),
        fork_of="nobody" if how == "never was" else parent,
        cache_salt="other" if how == "another salt" else "",
    )
    collector.step_until(child, OUTPUT_LEN)
    while engine.has_work:
        engine.step()

    assert_idle(engine.core)
    assert collector.tokens[child] == uncached(make_engine, prompt, greedy(1))
    if how == "another salt":
        assert collector.cached_len(child) == 0


def test_a_fork_whose_tokens_are_not_its_parents_shares_what_is_equal(
    make_engine: MakeEngine,
) -> None:
    collector = Collector(make_engine())
    parent = collector.add(PROMPT, greedy(1))
    collector.step_until(parent, 7)
    prompt = [*PROMPT, *collector.tokens[parent][:4], 300, 301]

    child = collector.add(prompt, greedy(1), fork_of=parent)
    collector.step_until(child, OUTPUT_LEN)

    assert collector.tokens[child] == uncached(make_engine, prompt, greedy(1))
    assert len(PROMPT) <= collector.cached_len(child) <= len(prompt) - 1


@pytest.mark.usefixtures("eager_admission")
def test_forks_in_a_pool_too_small_for_all(make_engine: MakeEngine) -> None:
    engine = make_engine(num_blocks=40, block_size=4)
    collector = Collector(engine)
    parent = collector.add(PROMPT, sampled(1))
    collector.step_until(parent, 6)
    prompt = PROMPT + collector.tokens[parent]

    children = [collector.add(prompt, sampled(50 + i), fork_of=parent) for i in range(8)]
    for name in (parent, *children):
        collector.step_until(name, OUTPUT_LEN)

    assert_idle(engine.core)
    assert engine.stats().preemptions > 0
    for i, child in enumerate(children):
        assert collector.tokens[child] == uncached(make_engine, prompt, sampled(50 + i))


def test_forks_without_a_cache_share_nothing(make_engine: MakeEngine) -> None:
    collector = Collector(make_engine(prefix_cache=False))
    parent = collector.add(PROMPT, sampled(1))
    collector.step_until(parent, 5)
    prompt = PROMPT + collector.tokens[parent]

    child = collector.add(prompt, sampled(2), fork_of=parent)
    collector.step_until(child, OUTPUT_LEN)

    assert collector.cached_len(child) == 0
    assert collector.tokens[child] == uncached(make_engine, prompt, sampled(2))


@pytest.mark.model
@pytest.mark.timeout(600)
def test_with_the_real_model(real_folder: Path) -> None:
    engine = Engine(config=engine_config(real_folder, num_threads=2))
    collector = Collector(engine)
    first = engine.tokenizer.encode("Once upon a time there was a parrot in a tree. One day,")
    parent = collector.add(first, greedy(1))
    collector.step_until(parent, 5)
    prompt = first + collector.tokens[parent]

    child = collector.add(prompt, greedy(1), fork_of=parent)
    collector.step_until(parent, OUTPUT_LEN)
    collector.step_until(child, OUTPUT_LEN)

    assert collector.cached_len(child) == len(prompt) - 1
    alone = Engine(config=engine_config(real_folder, prefix_cache=False, num_threads=2))
    for start, name in ((first, parent), (prompt, child)):
        [expected] = alone.run([ask(start, params=greedy(1))])
        num_ties(engine.core, start, expected.token_ids, collector.tokens[name])
