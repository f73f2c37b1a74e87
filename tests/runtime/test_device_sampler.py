"""The device's sampler chooses what the host's does; `test_sampler.py` holds both to the rest."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from radixserve.core.plan import SamplingState
from radixserve.runtime.device_edits import edit_rows
from radixserve.runtime.device_sampler import DeviceSampler
from radixserve.runtime.logit_edits import edit_logits
from radixserve.runtime.sampler import RowError, Sampler, uniform
from radixserve.types import SamplingParams, pack_ids

EDGE = 1e-5
"""How near u has to be to a cumulative weight for the samplers to differ by one rounding."""


@st.composite
def states(draw: st.DrawFn, *, vocab: int, has_filters: bool = True) -> SamplingState:
    """A row's parameters: greedy or not, any filters, any edits."""
    ids = st.integers(0, vocab + 5)
    some_ids = st.lists(ids, max_size=6)
    output = draw(some_ids)
    params = SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.3, 1.0, 1.7])),
        seed=draw(st.integers(0, 2**63)),
        top_k=draw(st.sampled_from([0, 0, 1, 5, 70])) if has_filters else 0,
        top_p=draw(st.sampled_from([1.0, 0.0, 0.3, 0.9, 0.999])) if has_filters else 1.0,
        min_p=draw(st.sampled_from([0.0, 0.0, 0.05, 0.5])) if has_filters else 0.0,
        repetition_penalty=draw(st.sampled_from([1.0, 1.3, 0.8])),
        presence_penalty=draw(st.sampled_from([0.0, 0.7])),
        frequency_penalty=draw(st.sampled_from([0.0, -0.4])),
        logit_bias=tuple(
            (i, draw(st.floats(-9, 9, width=32))) for i in sorted(set(draw(some_ids)))
        ),
        min_tokens=draw(st.sampled_from([0, 9])),
        stop_token_ids=frozenset(draw(some_ids)),
        allowed_token_ids=draw(st.none() | st.frozensets(ids, min_size=1, max_size=9)),
        bad_words=tuple(tuple(w) for w in draw(st.lists(st.lists(ids, min_size=1, max_size=2)))),
    )
    prompt = pack_ids(draw(some_ids))
    return SamplingState(params, len(output), prompt, pack_ids(output))


@st.composite
def batches(draw: st.DrawFn) -> tuple[torch.Tensor, list[SamplingState]]:
    vocab = draw(st.sampled_from([1, 7, 300, 1500]))
    rows = draw(st.lists(states(vocab=vocab), min_size=1, max_size=5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    logits = torch.randn(len(rows), vocab, generator=generator) * 4
    if draw(st.booleans()):
        logits = logits.round()  # many equal ones
    return logits, rows


@given(batches())
def test_edits_are_those_of_the_host_to_the_last_bit(
    batch: tuple[torch.Tensor, list[SamplingState]],
) -> None:
    logits, rows = batch
    before = logits.clone()

    edited = edit_rows(logits, rows)

    for row, state in enumerate(rows):
        assert np.array_equal(edited[row].numpy(), edit_logits(logits[row].numpy(), state))
    assert torch.equal(logits, before)


@given(batches())
def test_both_samplers_choose_the_same_token_but_where_a_sum_rounds(
    batch: tuple[torch.Tensor, list[SamplingState]],
) -> None:
    logits, rows = batch

    ours = DeviceSampler(10**6).sample(logits, rows)

    theirs = Sampler(10**6).sample(logits, rows)
    for row, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        if one != other:
            assert_is_edge(logits[row], rows[row], one, other)


def assert_is_edge(logits: torch.Tensor, state: SamplingState, one: object, other: object) -> None:
    """Assert that two tokens are neighbours among those left, with u between them."""
    assert isinstance(one, int)
    assert isinstance(other, int)
    edited = edit_logits(logits.numpy(), state).astype(np.float64)
    weights = np.exp((edited - edited.max()) / state.params.temperature)
    mass = np.cumsum(weights)
    first, last = sorted((one, other))
    share = mass[first] / mass[-1]
    assert weights[first + 1 : last].sum() / mass[-1] < EDGE
    assert abs(share - uniform(state)) < EDGE


@given(
    vocab=st.sampled_from([5, 300, 1500]),
    scale=st.sampled_from([0.0, 1.0, 30.0]),
    seed=st.integers(0, 1000),
)
def test_rows_of_a_batch_do_not_touch_one_another(vocab: int, scale: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(6, vocab, generator=generator) * scale
    logits[2] = torch.nan
    rows = [
        SamplingState(SamplingParams(temperature=t, top_p=p, top_k=k, seed=seed), 3)
        for t, p, k in [(1, 0.9, 0), (0, 1, 0), (1, 0.5, 4), (0.7, 1, 0), (2, 1, 3), (1, 0, 0)]
    ]
    sampler = DeviceSampler(vocab)

    together = sampler.sample(logits, rows)

    alone = [sampler.sample(logits[row : row + 1], [rows[row]])[0] for row in range(6)]
    assert together == alone
    assert isinstance(together[2], RowError)


@pytest.mark.parametrize("filters", [{}, {"top_k": 50}, {"top_p": 0.9}, {"min_p": 0.02}])
def test_thousands_of_draws_over_a_real_vocabulary_are_those_of_the_host(
    filters: dict[str, float],
) -> None:
    logits = (torch.randn(1, 49_152, generator=torch.Generator().manual_seed(5)) * 3).expand(64, -1)
    rows = [
        SamplingState(SamplingParams(temperature=0.8, seed=1, **filters), place)  # type: ignore[arg-type]
        for place in range(64)
    ]

    ours = DeviceSampler(49_152).sample(logits, rows)

    assert ours == Sampler(49_152).sample(logits, rows)
    assert len(set(ours)) > 5


def test_tokens_may_be_asked_for_later() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0]])
    greedy = SamplingState(SamplingParams(temperature=0.0), 0)

    pending = DeviceSampler(3).begin(logits, [greedy])
    logits.zero_()

    assert pending.result() == [1]
    assert pending.result() == [1]


def test_no_rows_give_no_tokens() -> None:
    assert DeviceSampler(3).sample(torch.empty(0, 3), []) == []
