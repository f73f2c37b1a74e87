"""The device's sampler chooses what the host's does; `test_sampler.py` holds both to the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

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
        top_k=draw(st.sampled_from([0, 0, 1, 5, 70, 1100])) if has_filters else 0,
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
    logits = torch.randn(9, vocab, generator=generator) * scale
    logits[2] = torch.nan
    rows = [
        SamplingState(SamplingParams(temperature=t, top_p=p, top_k=k, seed=seed), 3)
        for t, p, k in [
            (1, 0.9, 0),
            (0, 1, 0),
            (1, 0.5, 4),
            (0.7, 1, 0),
            (2, 1, 3),
            (1, 0, 0),
            (3, 0.8, 900),
            (3, 0.8, 1100),
            (3, 1, 1100),
        ]
    ]
    sampler = DeviceSampler(vocab)

    together = sampler.sample(logits, rows)

    alone = [sampler.sample(logits[row : row + 1], [rows[row]])[0] for row in range(9)]
    assert together == alone
    assert isinstance(together[2], RowError)


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"top_k": 50},
        {"top_k": 3000},
        {"top_p": 0.9},
        {"top_k": 50, "top_p": 0.9},
        {"top_k": 3000, "top_p": 0.9},
        {"min_p": 0.02},
    ],
)
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


@given(batches(), st.integers(0, 10_000))
def test_masks_cross_to_the_device_as_they_are(
    batch: tuple[torch.Tensor, list[SamplingState]], seed: int
) -> None:
    logits, rows = batch
    rows = [row._replace(params=replace(row.params, temperature=0.0)) for row in rows]
    rng = np.random.default_rng(seed)
    vocab = logits.shape[1]
    masks: dict[int, np.ndarray | str] = {1: "why"} if len(rows) > 1 else {}
    for row in rng.permutation([0, 2, 4]):
        if row < len(rows):
            masks[int(row)] = rng.random(vocab) < rng.choice([0.1, 0.9])
            masks[int(row)][rng.integers(vocab)] = True  # type: ignore[index]

    ours = DeviceSampler(10**6).sample(logits, rows, masks)

    assert ours == Sampler(10**6).sample(logits, rows, masks)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("filters", [{}, {"top_k": 2}, {"top_k": 2000}, {"top_p": 0.5}])
def test_a_row_that_fails_has_a_token_in_range_on_the_device(
    bad: float, filters: dict[str, float]
) -> None:
    logits = torch.full((1, 300), bad)
    params = SamplingParams(seed=3, **filters)  # type: ignore[arg-type]
    row = SamplingState(params, 1)

    chosen = DeviceSampler(300).begin(logits, [row])

    assert isinstance(chosen.result()[0], RowError)
    assert 0 <= chosen.tokens[0] < 300


class _Waits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what asks a device for a value, or for a size that only its values tell."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[str] = []
        self.num_calls = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.num_calls += 1
        name = func._schema.name.removeprefix("aten::")
        is_index = name in ("index", "index_put", "index_put_")
        has_bools = is_index and any(i.dtype is torch.bool for i in args[1] if i is not None)
        if has_bools or name in ("_local_scalar_dense", "nonzero", "masked_select", "equal"):
            self.found.append(name)
        return func(*args, **kwargs or {})


@given(batches())
def test_nothing_is_asked_of_the_device_before_the_result_is(
    batch: tuple[torch.Tensor, list[SamplingState]],
) -> None:
    logits, rows = batch
    masks = {0: np.ones(logits.shape[1], dtype=np.bool_)}

    with _Waits() as waits:
        DeviceSampler(10**6).begin(logits, rows, masks)

    assert waits.found == []
    assert waits.num_calls > 5


def test_a_pass_of_the_search_for_top_p_is_a_few_calls() -> None:
    logits = torch.zeros(2, 700)
    plain, filtered = _Waits(), _Waits()
    for counter, top_p in ((plain, 1.0), (filtered, 0.5)):
        rows = [SamplingState(SamplingParams(seed=1, top_p=top_p), 0)] * 2
        with counter:
            DeviceSampler(700).begin(logits, rows)

    assert 30 < filtered.num_calls - plain.num_calls <= 31 * 10


def test_tokens_may_be_asked_for_later() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0]])
    greedy = SamplingState(SamplingParams(temperature=0.0), 0)

    pending = DeviceSampler(3).begin(logits, [greedy])
    logits.zero_()

    assert pending.result() == [1]
    assert pending.result() == [1]


def test_no_rows_give_no_tokens() -> None:
    assert DeviceSampler(3).sample(torch.empty(0, 3), []) == []
