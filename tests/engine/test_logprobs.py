"""Log-probabilities equal a plain computation, whatever was cached and however it got there."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from radixserve.types import SamplingParams
from tests.kit.deltas import run_merged
from tests.kit.engines import ask, assert_idle
from tests.kit.likelihood import next_token_logprobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from radixserve.engine.request import GenerateRequest, TextDelta
    from radixserve.engine.sync_engine import Engine
    from radixserve.types import TokenLogprob
    from tests.engine.conftest import MakeEngine

OUTPUT_LEN = 12
NUM_TOP = 3
DENSE_TOLERANCE = 1e-4
CACHED_TOLERANCE = 1e-5

_random = Random(11)
TRUNK = [_random.randrange(3, 320) for _ in range(53)]
PROMPTS = [TRUNK, *([*TRUNK, *(_random.randrange(3, 320) for _ in range(n))] for n in (1, 9, 30))]
PROMPTS += [[_random.randrange(3, 320) for _ in range(n)] for n in (1, 2, 16, 40)]
PARAMS = SamplingParams(
    temperature=0.9, max_tokens=OUTPUT_LEN, logprobs=NUM_TOP, prompt_logprobs=NUM_TOP
)


def make_requests(start: int = 0, **fields: Any) -> list[GenerateRequest]:
    params = replace(PARAMS, prompt_logprobs_start=start)
    return [
        ask(prompt, params=replace(params, seed=70 + i), **fields)
        for i, prompt in enumerate(PROMPTS)
    ]


def check_told(told: Sequence[TokenLogprob], rows: torch.Tensor, tokens: Sequence[int]) -> None:
    """Tokens, their log-probabilities and ranks, and the likeliest ones, are those of the rows."""
    assert [each.token_id for each in told] == list(tokens)
    for each, row in zip(told, rows, strict=True):
        assert each.logprob == pytest.approx(float(row[each.token_id]), abs=DENSE_TOLERANCE)
        above = int((row > row[each.token_id] + DENSE_TOLERANCE).sum())
        not_below = int((row >= row[each.token_id] - DENSE_TOLERANCE).sum())
        assert above < each.rank <= not_below
        best = row.topk(len(each.top)).values
        assert len(each.top) == NUM_TOP
        for (token, logprob), expected in zip(each.top, best, strict=True):
            assert logprob == pytest.approx(float(expected), abs=DENSE_TOLERANCE)
            assert logprob == pytest.approx(float(row[token]), abs=DENSE_TOLERANCE)


def check_delta(engine: Engine, request: GenerateRequest, delta: TextDelta) -> None:
    prompt, output = list(request.prompt_ids), list(delta.token_ids)
    first = max(1, request.params.prompt_logprobs_start)
    rows = next_token_logprobs(engine.core, prompt + output)
    check_told(delta.logprobs, rows[len(prompt) - 1 : -1], output)
    check_told(delta.prompt_logprobs, rows[first - 1 : len(prompt) - 1], prompt[first:])


def check_equal(found: Sequence[TokenLogprob], expected: Sequence[TokenLogprob]) -> None:
    assert [each.token_id for each in found] == [each.token_id for each in expected]
    assert [each.logprob for each in found] == pytest.approx(
        [each.logprob for each in expected], abs=CACHED_TOLERANCE
    )


def check_same(found: Sequence[TextDelta], expected: Sequence[TextDelta]) -> None:
    for here, there in zip(found, expected, strict=True):
        assert here.token_ids == there.token_ids
        check_equal(here.logprobs, there.logprobs)
        check_equal(here.prompt_logprobs, there.prompt_logprobs)


@pytest.fixture(scope="module")
def alone(make_engine: MakeEngine) -> list[TextDelta]:
    """What each request is told when it is alone and nothing is ever reused."""
    engine = make_engine(prefix_cache=False)
    return [run_merged(engine, [request])[0] for request in make_requests()]


def test_alone_they_are_those_of_a_dense_computation(
    make_engine: MakeEngine, alone: list[TextDelta]
) -> None:
    engine = make_engine()
    for request, delta in zip(make_requests(), alone, strict=True):
        check_delta(engine, request, delta)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"prefix_cache": False},
        {"block_size": 1, "num_blocks": 4096},
        {"block_size": 4, "prefill_chunk_len": 7},
        {"max_num_seqs": 3, "max_num_batched_tokens": 11},
    ],
    ids=["plain", "no cache", "blocks of one", "chunks", "small steps"],
)
def test_in_company_cold_and_warm(
    settings: dict[str, Any], make_engine: MakeEngine, alone: list[TextDelta]
) -> None:
    engine = make_engine(**settings)
    for _ in range(2):
        check_same(run_merged(engine, make_requests()), alone)
    assert_idle(engine.core)


@pytest.mark.parametrize("start", [1, 2, 16, 30, 53, 54, 500])
def test_from_any_position_on_a_warm_cache(
    start: int, make_engine: MakeEngine, alone: list[TextDelta]
) -> None:
    engine = make_engine(block_size=4, num_blocks=1024)
    run_merged(engine, make_requests())
    requests = make_requests(start)

    found = run_merged(engine, requests)

    for request, here, there in zip(requests, found, alone, strict=True):
        assert here.token_ids == there.token_ids
        check_equal(here.prompt_logprobs, there.prompt_logprobs[start - 1 :])
        if start < len(request.prompt_ids):
            assert here.usage.cached_tokens == start - 1
        else:
            assert here.usage.cached_tokens == len(request.prompt_ids) - 1


@pytest.mark.usefixtures("eager_admission")
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_preempted(mode: str, make_engine: MakeEngine, alone: list[TextDelta]) -> None:
    engine = make_engine(num_blocks=40, block_size=4, prefill_chunk_len=5, preemption_mode=mode)
    salted = [request for salt in "abc" for request in make_requests(cache_salt=salt)]

    found = run_merged(engine, salted)

    stats = engine.stats()
    assert stats.preemptions > 0
    assert (stats.swapped_in_blocks > 0) == (mode == "swap")
    check_same(found, alone * 3)
    assert_idle(engine.core)


def test_forked_from_a_fork_point(make_engine: MakeEngine, alone: list[TextDelta]) -> None:
    """A child is told of its own tokens, and computes one token of its parent's for it."""
    engine = make_engine()
    whole = PROMPTS[3]
    [parent] = run_merged(
        engine,
        [
            ask(
                TRUNK,
                params=replace(PARAMS, seed=1, max_tokens=1),
                is_fork_point=True,
                request_id="p",
            )
        ],
    )
    assert len(parent.token_ids) == 1
    request = ask(
        whole,
        params=replace(PARAMS, seed=73, prompt_logprobs_start=len(TRUNK)),
        fork_of="p",
    )

    [child] = run_merged(engine, [request])

    assert child.usage.cached_tokens == len(TRUNK) - 1
    assert child.token_ids == alone[3].token_ids
    check_equal(child.logprobs, alone[3].logprobs)
    check_equal(child.prompt_logprobs, alone[3].prompt_logprobs[len(TRUNK) - 1 :])
    check_delta(engine, request, child)


def test_the_token_that_ends_the_output_is_told_of_whether_it_is_shown_or_not(
    make_engine: MakeEngine,
) -> None:
    """Who scores a prompt counts on one more than it has, also where the model would end."""
    engine = make_engine()
    [free] = run_merged(engine, [ask(TRUNK, max_tokens=6)])
    stop = free.token_ids[3]
    params = SamplingParams(
        temperature=0.0, max_tokens=6, logprobs=0, stop_token_ids=frozenset({stop})
    )
    first = free.token_ids.index(stop)

    [hidden] = run_merged(engine, [ask(TRUNK, params=params)])
    [shown] = run_merged(engine, [ask(TRUNK, params=params, include_stop_str_in_output=True)])

    for told in (hidden, shown):
        assert [each.token_id for each in told.logprobs] == list(free.token_ids[: first + 1])


def test_they_are_the_models_own_whatever_changes_the_choice(make_engine: MakeEngine) -> None:
    """Temperature, penalties, bias and masks change which token comes, not what is told of it."""
    engine = make_engine()
    params = replace(
        PARAMS,
        seed=5,
        temperature=1.7,
        repetition_penalty=1.4,
        frequency_penalty=0.5,
        logit_bias=((40, 8.0), (41, -50.0)),
        bad_words=((42,),),
        allowed_token_ids=frozenset(range(30, 200)),
    )
    request = ask(TRUNK, params=params)

    [delta] = run_merged(engine, [request])

    assert set(delta.token_ids) <= set(range(30, 200)) - {42}
    check_delta(engine, request, delta)
