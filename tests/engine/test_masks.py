"""What an output may consist of: ids that are allowed, and sequences that must not come."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from radixserve.errors import InvalidRequestError
from radixserve.types import FinishReason, SamplingParams
from tests.kit.deltas import run_merged
from tests.kit.engines import ask
from tests.kit.likelihood import next_token_logprobs

if TYPE_CHECKING:
    from tests.engine.conftest import MakeEngine

PROMPT = [3 + (29 * i * i + 3 * i) % 307 for i in range(21)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=10)
SAMPLED = replace(GREEDY, temperature=1.5, seed=8)
ALLOWED = frozenset({5, 17, 99, 200})


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_only_allowed_ids_come_beside_a_free_neighbour(
    params: SamplingParams, make_engine: MakeEngine
) -> None:
    engine = make_engine()
    [alone] = run_merged(engine, [ask(PROMPT, params=params)])

    masked, free = run_merged(
        engine,
        [
            ask(PROMPT, params=replace(params, allowed_token_ids=ALLOWED)),
            ask(PROMPT, params=params),
        ],
    )

    assert set(masked.token_ids) <= ALLOWED
    assert free.token_ids == alone.token_ids
    assert not set(alone.token_ids) <= ALLOWED


def test_the_best_of_the_allowed_ids_is_taken_by_a_greedy_request(make_engine: MakeEngine) -> None:
    engine = make_engine()
    [masked] = run_merged(engine, [ask(PROMPT, params=replace(GREEDY, allowed_token_ids=ALLOWED))])

    ids = [*PROMPT, *masked.token_ids]
    rows = next_token_logprobs(engine.core, ids)[len(PROMPT) - 1 : -1]
    best = [max(ALLOWED, key=row.__getitem__) for row in rows.tolist()]
    assert list(masked.token_ids) == best


def test_the_end_of_sequence_may_come_though_it_is_not_among_the_allowed(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine()
    params = replace(
        GREEDY, allowed_token_ids=ALLOWED, logit_bias=tuple((eos, 100.0) for eos in (0, 2))
    )

    [delta] = run_merged(engine, [ask(PROMPT, params=params, ignore_eos=False)])

    assert delta.finish_reason is FinishReason.STOP
    assert len(delta.token_ids) == 1


def test_a_bad_word_of_one_token_never_comes(make_engine: MakeEngine) -> None:
    engine = make_engine()
    [free] = run_merged(engine, [ask(PROMPT, params=GREEDY)])

    bad = tuple((token,) for token in set(free.token_ids))
    [masked] = run_merged(engine, [ask(PROMPT, params=replace(GREEDY, bad_words=bad))])

    assert not set(masked.token_ids) & set(free.token_ids)


@pytest.mark.parametrize("at", [1, 4, 8])
@pytest.mark.parametrize("length", [2, 3])
def test_a_bad_word_of_several_tokens_is_prevented_by_its_last_one(
    length: int, at: int, make_engine: MakeEngine
) -> None:
    """Its beginning may come: nothing else changes before the token that would complete it."""
    engine = make_engine()
    [free] = run_merged(engine, [ask(PROMPT, params=GREEDY)])
    start = max(0, at + 1 - length)
    word = free.token_ids[start : at + 1]

    [masked] = run_merged(engine, [ask(PROMPT, params=replace(GREEDY, bad_words=(word,)))])

    output = masked.token_ids
    assert all(output[i : i + len(word)] != word for i in range(len(output)))
    assert output[:at] == free.token_ids[:at]
    assert output[at] != free.token_ids[at]


def test_the_prompt_does_not_begin_a_bad_word(make_engine: MakeEngine) -> None:
    """What must not come is a sequence of output tokens."""
    engine = make_engine()
    [free] = run_merged(engine, [ask(PROMPT, params=GREEDY)])
    word = (PROMPT[-1], free.token_ids[0])

    [masked] = run_merged(engine, [ask(PROMPT, params=replace(GREEDY, bad_words=(word,)))])

    assert masked.token_ids == free.token_ids


@pytest.mark.usefixtures("eager_admission")
def test_masks_hold_through_preemption(make_engine: MakeEngine) -> None:
    roomy = make_engine()
    small = make_engine(num_blocks=24, block_size=4)
    [free] = run_merged(roomy, [ask(PROMPT, params=replace(SAMPLED, max_tokens=60))])
    params = replace(SAMPLED, max_tokens=60, bad_words=(free.token_ids[3:5], free.token_ids[:1]))
    requests = [ask(PROMPT, params=replace(params, seed=i)) for i in range(4)]
    requests += [ask(PROMPT, params=replace(params, seed=9, allowed_token_ids=ALLOWED))]

    pressed = run_merged(small, requests)

    assert small.stats().preemptions > 0
    alone = [run_merged(roomy, [request])[0] for request in requests]
    assert [delta.token_ids for delta in pressed] == [delta.token_ids for delta in alone]


def test_nothing_left_to_choose_ends_that_request_alone(make_engine: MakeEngine) -> None:
    engine = make_engine()
    stuck = replace(GREEDY, allowed_token_ids=frozenset({5}), bad_words=((5,),))
    names = [
        engine.add(ask(PROMPT, params=stuck)),
        engine.add(ask(PROMPT, params=GREEDY)),
    ]
    reasons = {}
    while engine.has_work:
        for event in engine.step():
            reasons[event.req_id] = (event.delta.finish_reason, event.error)

    assert reasons[names[0]][0] is FinishReason.ERROR
    assert "masked" in str(reasons[names[0]][1])
    assert reasons[names[1]] == (FinishReason.LENGTH, None)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("allowed_token_ids", frozenset()),
        ("allowed_token_ids", frozenset({-1})),
        ("allowed_token_ids", frozenset({1 << 20})),
        ("bad_words", ((),)),
        ("bad_words", ((3, 1 << 20),)),
        ("logprobs", -1),
        ("logprobs", 1 << 20),
        ("prompt_logprobs", -1),
        ("prompt_logprobs_start", -1),
    ],
)
def test_a_mask_without_meaning_is_refused_by_name(
    field: str, value: object, make_engine: MakeEngine
) -> None:
    engine = make_engine()
    with pytest.raises(InvalidRequestError) as refusal:
        engine.add(ask(PROMPT, params=replace(GREEDY, **{field: value})))  # type: ignore[arg-type]
    assert refusal.value.param == field
