"""A request that gives way has the tokens that it would have had undisturbed, whichever way."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from radixserve.errors import BackendError
from radixserve.types import FinishReason, SamplingParams
from tests.kit.engines import ask, assert_idle, num_ties

if TYPE_CHECKING:
    from radixserve.core.plan import StepPlan, StepResult
    from radixserve.engine.request import GenerateRequest
    from radixserve.engine.sync_engine import Completion, Engine
    from tests.engine.conftest import MakeEngine

OUTPUT_LEN = 90
NUM_REQUESTS = 12
NUM_BLOCKS = 60
"""Of 4 tokens: two requests and a half."""
GREEDY = SamplingParams(temperature=0.0, max_tokens=OUTPUT_LEN)
KINDS = {
    "greedy": GREEDY,
    "sampled": replace(GREEDY, temperature=0.8, top_p=0.95),
    "penalised": replace(GREEDY, temperature=0.7, repetition_penalty=1.2, frequency_penalty=0.3),
}
MODES = ("recompute", "swap", "auto")


def make_requests(kind: SamplingParams) -> list[GenerateRequest]:
    """Return requests of which some share a prefix, with priorities and seeds of their own."""
    random = Random(5)
    trunk = [random.randrange(3, 320) for _ in range(9)]
    requests = []
    for index in range(NUM_REQUESTS):
        own = [random.randrange(3, 320) for _ in range(random.randint(1, 12))]
        prompt = trunk + own if index % 3 == 0 else own
        params = replace(kind, seed=100 + index)
        requests.append(ask(prompt, params=params, priority=int(index % 4 == 3)))
    return requests


def make_pressed(make_engine: MakeEngine, mode: str, **settings: Any) -> Engine:
    """An engine whose pool holds a few of the requests, and which admits too many."""
    return make_engine(
        num_blocks=NUM_BLOCKS,
        block_size=4,
        preemption_mode=mode,
        max_num_seqs=NUM_REQUESTS,
        **settings,
    )


@pytest.fixture(scope="module")
def undisturbed(make_engine: MakeEngine) -> dict[str, list[Completion]]:
    """What each request gives when it is alone."""
    engine = make_engine(prefix_cache=False)
    found = {
        name: [engine.run([request])[0] for request in make_requests(kind)]
        for name, kind in KINDS.items()
    }
    assert engine.stats().preemptions == 0
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", KINDS)
def test_outputs_under_pressure_are_those_of_undisturbed_runs(
    name: str, mode: str, make_engine: MakeEngine, undisturbed: dict[str, list[Completion]]
) -> None:
    engine = make_pressed(make_engine, mode)
    requests = make_requests(KINDS[name])

    completions = engine.run(requests)

    ties = 0
    for request, expected, found in zip(requests, undisturbed[name], completions, strict=True):
        assert found.finish_reason is FinishReason.LENGTH
        if name == "greedy":
            prompt = request.prompt_ids
            ties += num_ties(engine.core, prompt, expected.token_ids, found.token_ids)
        else:
            assert found.token_ids == expected.token_ids
            assert found.text == expected.text
    print(f"{ties} ties")  # noqa: T201
    stats = engine.stats()
    assert stats.preemptions > 0
    if mode == "swap":
        assert stats.swapped_out_blocks >= stats.swapped_in_blocks > 0
        assert stats.recomputed_tokens == 0
    if mode == "recompute":
        assert stats.host_blocks == stats.swapped_out_blocks == 0
        assert stats.recomputed_tokens > 0
    assert stats.free_host_blocks == stats.host_blocks
    assert_idle(engine.core)


def test_swapping_works_without_a_prefix_cache(
    make_engine: MakeEngine, undisturbed: dict[str, list[Completion]]
) -> None:
    engine = make_pressed(make_engine, "swap", prefix_cache=False)

    completions = engine.run(make_requests(KINDS["sampled"]))

    assert [completion.token_ids for completion in completions] == [
        completion.token_ids for completion in undisturbed["sampled"]
    ]
    stats = engine.stats()
    assert stats.swapped_out_blocks == stats.swapped_in_blocks > 0
    assert stats.recomputed_tokens == 0


def test_a_swap_space_for_one_victim_serves_everybody(
    make_engine: MakeEngine, undisturbed: dict[str, list[Completion]]
) -> None:
    """Some are swapped, and those that find no room are computed again."""
    block_bytes = make_engine(num_blocks=8, block_size=4).core.scheduler.swap_space.costs
    assert block_bytes is not None
    engine = make_pressed(make_engine, "swap", swap_space_bytes=26 * block_bytes.block_bytes)
    assert engine.stats().host_blocks == 26

    completions = engine.run(make_requests(KINDS["sampled"]))

    assert [completion.token_ids for completion in completions] == [
        completion.token_ids for completion in undisturbed["sampled"]
    ]
    assert engine.stats().swapped_in_blocks > 0
    assert engine.stats().recomputed_tokens > 0


def test_a_step_that_fails_while_somebody_is_swapped_harms_nobody_else(
    make_engine: MakeEngine, undisturbed: dict[str, list[Completion]]
) -> None:
    """The first step that swaps out fails; so does the first that swaps in."""
    engine = make_pressed(make_engine, "swap")
    execute, failed = engine.core._runner.execute, list[str]()

    def fail_first(plan: StepPlan) -> StepResult:
        kind = "in" if plan.swap_ins else "out" if plan.swap_outs else ""
        if kind and kind not in failed:
            failed.append(kind)
            raise BackendError(f"a step that swaps {kind} is lost")
        return execute(plan)

    engine.core._runner.execute = fail_first  # type: ignore[method-assign]
    requests = make_requests(KINDS["sampled"])
    names = [engine.core.begin(request) for request in requests]
    tokens: dict[str, list[int]] = {name: [] for name in names}
    reasons: dict[str, FinishReason] = {}
    while engine.core.has_work:
        for event in engine.core.step():
            tokens[event.req_id] += event.delta.token_ids
            if event.delta.finish_reason is not None:
                reasons[event.req_id] = event.delta.finish_reason

    assert failed == ["out", "in"]
    assert set(reasons) == set(names)
    assert FinishReason.LENGTH in reasons.values()
    for name, expected in zip(names, undisturbed["sampled"], strict=True):
        if reasons[name] is FinishReason.LENGTH:
            assert tuple(tokens[name]) == expected.token_ids
        else:
            assert reasons[name] is FinishReason.ERROR
    assert engine.stats().free_host_blocks == engine.stats().host_blocks
    assert_idle(engine.core)
