from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve import kernels
from radixserve.core.plan import SamplingState
from radixserve.errors import InvariantError
from radixserve.runtime.device_sampler import DeviceSampler
from radixserve.runtime.native_sampler import NativeSampler
from radixserve.runtime.sampler import RowError, Sampler, pick
from radixserve.types import SamplingParams, pack_ids

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SAMPLERS: list[type[Sampler] | type[DeviceSampler] | type[NativeSampler]] = [Sampler, DeviceSampler]
if kernels.is_available():
    SAMPLERS.append(NativeSampler)


@pytest.fixture(params=SAMPLERS, autouse=True, scope="module")
def sampler_type(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test here holds for both samplers: `sample` uses the one whose turn it is."""
    global _sampler_type
    _sampler_type = request.param
    yield
    _sampler_type = Sampler


_sampler_type: type[Sampler] | type[DeviceSampler] | type[NativeSampler] = Sampler

NAN, INF = float("nan"), float("inf")


def make_state(*, output_len: int = 0, output: Sequence[int] = (), **params: Any) -> SamplingState:
    params = {"seed": 0} | params
    return SamplingState(SamplingParams(**params), output_len or len(output), b"", pack_ids(output))


def sample(
    logits: Sequence[Sequence[float]] | torch.Tensor, *states: SamplingState, vocab: int = 10**6
) -> list[int | RowError]:
    rows = logits if isinstance(logits, torch.Tensor) else torch.tensor(logits)
    return _sampler_type(vocab).sample(rows.float(), states)


def draw(probs: Sequence[float], count: int = 2000, **params: Any) -> Counter[int | RowError]:
    """Sample one row `count` times, at as many output positions of one seed."""
    row = torch.tensor(probs).log()
    states = [make_state(output_len=place, **params) for place in range(count)]
    return Counter(sample(row.expand(count, -1), *states))


GREEDY = make_state(temperature=0.0)


def test_greedy_takes_the_largest_logit_of_each_row() -> None:
    assert sample([[1.0, 3.0, 2.0], [9.0, 3.0, 2.0]], GREEDY, GREEDY) == [1, 0]


def test_a_tie_goes_to_the_lowest_id_greedy_or_not() -> None:
    row = [0.0, 5.0, 5.0, 5.0]
    one = make_state(top_k=1)
    biased = make_state(temperature=0.0, logit_bias=((0, 1.0),))

    assert sample([row] * 3, GREEDY, one, biased) == [1, 1, 1]


def test_a_greedy_row_needs_no_seed() -> None:
    assert sample([[1.0, 2.0]], make_state(temperature=0.0, seed=None)) == [1]


def test_a_row_with_a_temperature_and_no_seed_is_our_bug() -> None:
    with pytest.raises(InvariantError, match="no seed"):
        sample([[1.0, 2.0]], make_state(seed=None))


@pytest.mark.parametrize("temperature", [1e-4, 1e-5, 1e-6, 1e-30, 0.0])
def test_tiny_temperatures_give_what_greedy_gives(temperature: float) -> None:
    logits = torch.randn(8, 1000, generator=torch.Generator().manual_seed(1)) * 1e4
    expected = sample(logits, *[GREEDY] * 8)

    assert sample(logits, *[make_state(temperature=temperature)] * 8) == expected


def test_no_temperature_overflows_on_the_largest_finite_logits() -> None:
    largest = torch.finfo(torch.float32).max
    states = [make_state(temperature=t) for t in (1e-5, 1e-4, 1.0, 2.0)]

    assert sample([[-largest, largest, -largest]] * 4, *states) == [1] * 4


@pytest.mark.parametrize("bad", [[NAN] * 3, [1.0, NAN, 2.0], [1.0, INF, 2.0]])
@pytest.mark.parametrize("state", [GREEDY, make_state(), make_state(top_p=0.5)])
def test_a_row_that_is_not_finite_fails_alone(bad: list[float], state: SamplingState) -> None:
    first, failed, last = sample([[9.0, 0.0, 0.0], bad, [0.0, 0.0, 9.0]], GREEDY, state, GREEDY)

    assert (first, last) == (0, 2)
    assert failed == RowError("the model produced logits that are not finite numbers")


@pytest.mark.parametrize("state", [GREEDY, make_state()])
def test_a_row_of_minus_infinity_alone_fails_alone(state: SamplingState) -> None:
    failed, fine = sample([[-INF, -INF], [1.0, -INF]], state, state)

    assert isinstance(failed, RowError)
    assert "masked out" in failed.message
    assert fine == 0


def test_stop_ids_that_are_the_whole_vocabulary_fail_the_row_and_no_other() -> None:
    held = make_state(temperature=0.0, min_tokens=1, stop_token_ids=frozenset({0, 1}))
    failed, fine = sample([[1.0, 2.0]] * 2, held, GREEDY)

    assert isinstance(failed, RowError)
    assert fine == 1


def test_no_stop_id_is_sampled_before_min_tokens() -> None:
    stops = frozenset({0, 1, 2})
    drawn = draw([0.5, 0.3, 0.15, 0.05], min_tokens=10**6, stop_token_ids=stops)

    assert set(drawn) == {3}


def test_ids_from_the_vocabulary_limit_on_are_never_sampled() -> None:
    row = torch.tensor([0.0] * 8 + [50.0] * 4)
    states = [make_state(output_len=place, temperature=2.0) for place in range(1000)]

    drawn = sample(row.expand(1000, -1), *states, vocab=8)

    assert set(drawn) == set(range(8))
    assert sample([row.tolist()], GREEDY, vocab=8) == [0]


def test_a_strong_bias_decides_every_token_of_its_own_row_only() -> None:
    biased = make_state(temperature=1.0, logit_bias=((2, 100.0),))
    banned = make_state(temperature=0.0, logit_bias=((0, -100.0),))

    assert sample([[5.0, 1.0, 0.0]] * 3, biased, banned, GREEDY) == [2, 1, 0]


def test_a_penalty_changes_a_greedy_choice() -> None:
    state = make_state(temperature=0.0, output=(0, 0), frequency_penalty=1.0)

    assert sample([[5.0, 4.0]], state) == [1]


def test_the_drawn_frequencies_are_the_probabilities() -> None:
    probs = np.array([0.5, 0.3, 0.15, 0.05])
    drawn = draw(probs.tolist(), count=4000, seed=3)

    expected = 4000 * probs
    chi_square = sum((drawn[i] - expected[i]) ** 2 / expected[i] for i in range(4))
    assert chi_square < 16.3  # 0.1 % of fair samplers exceed it; the seed is fixed


def test_a_temperature_sharpens_or_flattens() -> None:
    # At temperature 1/2 the odds 4:1 become 16:1, at temperature 2 they become 2:1.
    cold, warm = draw([0.8, 0.2], temperature=0.5), draw([0.8, 0.2], temperature=2.0)

    assert abs(cold[0] / 2000 - 16 / 17) < 0.02
    assert abs(warm[0] / 2000 - 2 / 3) < 0.04


def test_top_k_keeps_the_k_likeliest_and_the_lower_id_of_equals() -> None:
    assert set(draw([0.2, 0.1, 0.3, 0.2, 0.2], top_k=2)) == {0, 2}


def test_a_top_k_beyond_the_vocabulary_keeps_all() -> None:
    assert set(draw([0.5, 0.25, 0.25], top_k=10)) == {0, 1, 2}


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [
        (0.0, {1}),
        (0.45, {1}),
        (0.55, {1, 3}),
        (0.75, {1, 3}),
        (0.85, {0, 1, 3}),
        (1.0, {0, 1, 2, 3}),
    ],
)
def test_top_p_keeps_the_smallest_set_that_reaches_p(top_p: float, kept: set[int]) -> None:
    assert set(draw([0.125, 0.5, 0.0625, 0.3125], top_p=top_p)) == kept


def test_top_p_looks_at_what_top_k_left() -> None:
    # Of 0.4 and 0.2 the first has two thirds.
    assert set(draw([0.4, 0.2, 0.2, 0.2], top_k=2, top_p=0.6)) == {0}


@pytest.mark.parametrize("vocab_len", [2000, 4000, 40_000])
def test_top_p_is_right_where_many_tokens_share_it(vocab_len: int) -> None:
    flat = torch.zeros(vocab_len)
    states = [make_state(output_len=place, top_p=0.5) for place in range(200)]

    drawn = sample(flat.expand(200, -1), *states)

    tokens = [token for token in drawn if isinstance(token, int)]
    assert len(tokens) == 200
    assert 0.45 * vocab_len < max(tokens) < 0.5 * vocab_len


def test_min_p_is_relative_to_the_likeliest() -> None:
    assert set(draw([0.5, 0.3, 0.15, 0.05], min_p=0.5)) == {0, 1}
    assert set(draw([0.5, 0.3, 0.15, 0.05], min_p=1.0)) == {0}


@pytest.mark.parametrize(("u", "place"), [(0.0, 1), (0.2, 1), (0.25, 3), (0.9, 3), (1 - 2**-53, 3)])
def test_a_weight_of_zero_is_never_picked(u: float, place: int) -> None:
    assert pick(np.array([0.0, 1.0, 0.0, 3.0, 0.0], dtype=np.float32), u) == place


@settings(max_examples=60, deadline=None)
@given(
    length=st.integers(1, 1100),
    density=st.sampled_from([0.01, 0.5, 1.0]),
    u=st.floats(0, 1, exclude_max=True),
    seed=st.integers(0, 1000),
)
def test_pick_is_the_plain_inverse_of_the_cumulative_weights(
    length: int, density: float, u: float, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    weights = generator.random(length, dtype=np.float32)
    weights[generator.random(length) >= density] = 0.0
    weights[generator.integers(length)] = 1.0

    place = pick(weights, u)

    target = u * weights.sum(dtype=np.float64)
    assert weights[place] > 0
    assert weights[:place].sum(dtype=np.float64) <= target + 1e-9
    assert weights[: place + 1].sum(dtype=np.float64) >= target - 1e-9


def test_no_rounding_of_the_sums_leads_to_a_weight_of_zero() -> None:
    for seed in range(200):
        # Over many orders of magnitude, so that sums in another order are rounded otherwise.
        weights = np.exp(-40 * np.random.default_rng(seed).random(1100)).astype(np.float32)
        weights[::256] = 0.0
        mass = np.cumsum(weights, dtype=np.float64)
        for end in (256, 512, 768, 1024):
            assert weights[pick(weights, np.nextafter(mass[end - 1] / mass[-1], 0.0))] > 0


def test_the_token_is_a_function_of_seed_and_place_alone() -> None:
    row = torch.randn(500, generator=torch.Generator().manual_seed(2))
    state = make_state(seed=42, output_len=5, temperature=0.8)
    (alone,) = sample(row[None], state)
    others = torch.randn(7, 500, generator=torch.Generator().manual_seed(4))
    mixed = [
        GREEDY,
        make_state(seed=1),
        make_state(seed=42),
        make_state(top_p=0.9),
        make_state(top_k=5),
        make_state(logit_bias=((1, 3.0),)),
        make_state(seed=9, min_p=0.1),
    ]

    for place in range(8):
        rows = torch.cat([others[:place], row[None], others[place:]])
        assert sample(rows, *mixed[:place], state, *mixed[place:])[place] == alone


def test_another_seed_or_place_gives_another_stream() -> None:
    flat = torch.zeros(64, 1000)
    by_place = sample(flat, *[make_state(seed=7, output_len=place) for place in range(64)])
    by_seed = sample(flat, *[make_state(seed=seed) for seed in range(64)])

    assert len(set(by_place)) > 50
    assert len(set(by_seed)) > 50
    assert by_place != by_seed


@pytest.mark.parametrize("seed", [-1, -(2**63), 2**63 - 1, 2**64 - 1])
def test_every_64_bit_seed_is_taken(seed: int) -> None:
    assert sample([[0.0, 0.0]], make_state(seed=seed))[0] in (0, 1)


def test_the_logits_are_not_changed() -> None:
    logits = torch.randn(3, 50)
    before = logits.clone()

    sample(logits, GREEDY, make_state(top_p=0.5), make_state(logit_bias=((0, 9.0),)))

    assert torch.equal(logits, before)


@settings(max_examples=60, deadline=None)
@given(
    weights=st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 7.0]), min_size=1, max_size=12),
    top_k=st.integers(0, 13),
    top_p=st.sampled_from([0.1, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 0.6]),
    seed=st.integers(0, 2**63),
)
def test_what_is_drawn_always_survives_a_plain_reading_of_the_filters(
    weights: list[float], top_k: int, top_p: float, min_p: float, seed: int
) -> None:
    row = torch.tensor([weights]).log()
    (token,) = sample(row, make_state(seed=seed, top_k=top_k, top_p=top_p, min_p=min_p))

    if not any(weights):
        assert isinstance(token, RowError)
        return
    ranked = sorted(range(len(weights)), key=lambda i: (-weights[i], i))
    ranked = [i for i in ranked if weights[i] >= min_p * max(weights) * (1 - 1e-6)]
    ranked = ranked[:top_k] if top_k else ranked
    total = sum(weights[i] for i in ranked)
    allowed, mass = [], 0.0
    for i in ranked:
        if mass < top_p * total * (1 + 1e-6):
            allowed.append(i)
        mass += weights[i]
    assert token in allowed
    assert isinstance(token, int)
    assert weights[token] > 0


def mask_of(*allowed: int, size: int = 4) -> np.ndarray:
    mask = np.zeros(size, dtype=np.bool_)
    mask[list(allowed)] = True
    return mask


def test_a_mask_holds_for_its_row_alone_greedy_or_not() -> None:
    row = torch.tensor([[9.0, 3.0, 2.0, 1.0]] * 3)
    warm = make_state(temperature=2.0, seed=3)

    assert _sampler_type(10).sample(row, [GREEDY] * 3, {1: mask_of(2, 3)}) == [0, 2, 0]
    drawn = [_sampler_type(10).sample(row[:1], [warm], {0: mask_of(2)}) for _ in range(20)]
    assert drawn == [[2]] * 20


def test_what_other_masks_leave_nothing_of_is_allowed_all_the_same() -> None:
    row = torch.tensor([[9.0, 3.0, 2.0, 1.0]])
    only_0 = make_state(temperature=0.0, allowed_token_ids=frozenset({0}))
    held = make_state(temperature=0.0, min_tokens=5, stop_token_ids=frozenset({3}))
    both = make_state(temperature=0.0, allowed_token_ids=frozenset({0, 2}))

    assert _sampler_type(10).sample(row, [only_0], {0: mask_of(2, 3)}) == [2]
    assert _sampler_type(10).sample(row, [held], {0: mask_of(3)}) == [3]
    assert _sampler_type(10).sample(row, [held], {0: mask_of(2, 3)}) == [2]
    assert _sampler_type(10).sample(row, [both], {0: mask_of(1, 2)}) == [2]


def test_a_row_with_a_reason_in_place_of_a_mask_fails_alone() -> None:
    row = torch.tensor([[9.0, 3.0, 2.0, 1.0]] * 2)

    assert _sampler_type(10).sample(row, [GREEDY] * 2, {0: "why"}) == [RowError("why"), 0]
