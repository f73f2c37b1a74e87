from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve.core.admission import (
    CALM_STEPS,
    MAX_GROWTH_TOKENS,
    MIN_GROWTH_TOKENS,
    GrowthReserve,
    best_private_tail,
    find_leader,
    growth_blocks,
    has_room_for_prompt,
    is_held_back,
    lowest_below,
    never_fits,
    share_prefill_budget,
    shared_span,
)
from radixserve.core.prefix_cache import PrefixCache
from radixserve.core.req import Req, ReqEvent
from radixserve.types import Namespace, pack_ids
from tests.kit.builders import make_spec
from tests.kit.truth import shared_len

REMAINING = st.lists(st.integers(1, 50), max_size=8)
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=30)


def make_req(prompt: list[int], name: str = "a", **fields: int) -> Req:
    return Req(make_spec(name, prompt, **fields), arrival=1)  # type: ignore[arg-type]


def make_running(prompt: list[int], computed_len: int, **fields: int) -> Req:
    req = make_req(prompt, "leader", **fields)
    req.apply(ReqEvent.ADMIT)
    req.computed_len = computed_len
    return req


# -- the prompt budget ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("remaining", "budget", "chunk_len", "expected"),
    [
        ([], 10, 10, []),
        ([30], 10, 99, [10]),
        ([30], 10, 4, [4]),
        ([30, 3, 20], 10, 99, [5, 3, 2]),
        ([30, 20, 3], 10, 99, [5, 2, 3]),
        ([2, 20, 3], 10, 99, [2, 5, 3]),
        ([30, 2], 10, 99, [8, 2]),
        ([30, 30], 0, 99, [0, 0]),
        ([30, 30], -1, 99, [0, 0]),
        ([30, 30], 1, 99, [1, 0]),
    ],
)
def test_half_for_the_oldest_and_the_rest_for_the_shortest(
    remaining: list[int], budget: int, chunk_len: int, expected: list[int]
) -> None:
    assert share_prefill_budget(remaining, budget, chunk_len) == expected


@given(remaining=REMAINING, budget=st.integers(0, 60), chunk_len=st.integers(1, 60))
def test_the_budget_is_kept_and_none_of_it_is_left_that_somebody_could_use(
    remaining: list[int], budget: int, chunk_len: int
) -> None:
    shares = share_prefill_budget(remaining, budget, chunk_len)
    wanted = [min(length, chunk_len) for length in remaining]

    assert all(0 <= share <= want for share, want in zip(shares, wanted, strict=True))
    assert sum(shares) == min(budget, sum(wanted))
    if remaining:
        assert shares[0] >= min(wanted[0], -(-budget // 2))


@given(
    remaining=REMAINING,
    budget=st.integers(0, 60),
    chunk_len=st.integers(1, 60),
    newcomer=st.integers(1, 50),
)
def test_there_is_room_for_a_prompt_if_and_only_if_it_would_get_a_token(
    remaining: list[int], budget: int, chunk_len: int, newcomer: int
) -> None:
    """Longer prompts than the newcomer may get less, so it is compared with the longest."""
    newcomer = max([newcomer, *remaining[1:]])
    shares = share_prefill_budget([*remaining, newcomer], budget, chunk_len)

    assert has_room_for_prompt(remaining, budget, chunk_len) == (shares[-1] > 0)


# -- memory --------------------------------------------------------------------------------------


def test_growth_is_what_the_next_outputs_need_but_not_beyond_the_end() -> None:
    cache = PrefixCache(num_blocks=100, block_size=4)
    reqs = []
    for max_tokens in (1, 9, 1000):
        req = make_req([1] * 8, max_tokens=max_tokens)
        acquired = cache.acquire(cache.match(b"", Namespace()), 8)
        assert acquired is not None
        req.lease = acquired.lease
        reqs.append(req)

    alone = [growth_blocks([req], 4, 64) for req in reqs]

    assert alone == [0, 2, 64 // 4]
    assert growth_blocks([*reqs, make_req([1])], 4, 64) == sum(alone)


def test_the_reserve_learns_from_preemptions_and_recovers_fully() -> None:
    reserve = GrowthReserve()
    for _ in range(20):
        reserve.step_passed(has_preempted=True)
    assert reserve.tokens == MAX_GROWTH_TOKENS

    for _ in range(CALM_STEPS):
        reserve.step_passed(has_preempted=False)
    assert reserve.tokens == MAX_GROWTH_TOKENS // 2

    for _ in range(CALM_STEPS * 20):
        reserve.step_passed(has_preempted=False)
    assert reserve.tokens == MIN_GROWTH_TOKENS


def test_the_youngest_of_the_lowest_class_below_gives_way() -> None:
    reqs = [
        Req(make_spec(f"r{i}", [1], priority=priority), arrival=i)
        for i, priority in enumerate([1, 0, 2, 0, 1])
    ]

    assert lowest_below(reqs, 2) is reqs[3]
    assert lowest_below(reqs, 1) is reqs[3]
    assert lowest_below(reqs, 0) is None


@pytest.mark.parametrize(
    ("prompt_len", "max_tokens", "fits"),
    [(10, 7, True), (10, 8, False), (16, 1, True), (17, 1, False), (1, 16, True)],
)
def test_a_request_fits_if_all_but_its_last_token_fit_in_the_pool(
    prompt_len: int, max_tokens: int, fits: bool
) -> None:
    why = never_fits(prompt_len, max_tokens, max_model_len=100, num_blocks=4, block_size=4)

    assert (why is None) == fits
    if why is not None:
        assert f"{prompt_len} tokens" in why
        assert "16 tokens (4 blocks of 4)" in why


def test_the_context_limit_is_named_before_the_pool() -> None:
    why = never_fits(90, 11, max_model_len=100, num_blocks=1, block_size=1)

    assert why is not None
    assert "together 101, but the context holds 100" in why


# -- leaders -------------------------------------------------------------------------------------


@given(a=TOKENS, b=TOKENS)
def test_the_shared_span_is_the_common_prefix_short_of_the_last_token(
    a: list[int], b: list[int]
) -> None:
    assert shared_span(make_req(a), make_req(b)) == min(shared_len(a, b), len(a) - 1)


def test_nothing_is_shared_across_namespaces() -> None:
    other = Req(make_spec("b", [1] * 9, namespace=Namespace(salt="x")), arrival=1)

    assert shared_span(make_req([1] * 9), other) == 0


def test_the_leader_with_the_longest_span_is_followed() -> None:
    req = make_req([1] * 40)
    short, long = make_running([1] * 20 + [2] * 9, 0), make_running([1] * 30 + [2] * 9, 0)

    assert find_leader(req, 0, [short, long], min_gain=4) == (long, 30)
    assert find_leader(req, 0, [long, short], min_gain=4) == (long, 30)


@pytest.mark.parametrize(
    ("cached_len", "computed_len", "follows"),
    [(0, 0, True), (26, 0, True), (27, 0, False), (0, 29, True), (0, 30, False)],
)
def test_nobody_waits_for_little_or_for_what_is_done(
    cached_len: int, computed_len: int, follows: bool
) -> None:
    leader = make_running([1] * 30 + [2] * 9, computed_len)

    found = find_leader(make_req([1] * 40), cached_len, [leader], min_gain=4)

    assert found == ((leader, 30) if follows else None)


def test_a_follower_is_held_back_until_its_span_is_computed_or_its_leader_is_gone() -> None:
    leader = make_running([1] * 39, 29)
    req = make_req([1] * 40)
    assert not is_held_back(req)

    req.leader, req.leader_span = leader, 30

    assert is_held_back(req)
    leader.computed_len = 30
    assert not is_held_back(req)
    leader.computed_len = 0
    leader.apply(ReqEvent.PREEMPT)
    assert not is_held_back(req)


# -- private tails -------------------------------------------------------------------------------


def tail_from(source_tokens: list[int], computed_len: int, prompt: list[int]) -> int:
    """Tokens of the best tail when a source that published its full blocks is running."""
    cache = PrefixCache(num_blocks=50, block_size=4)
    source = make_running(source_tokens, 0)
    acquired = cache.acquire(cache.match(pack_ids(source_tokens), Namespace()), len(source_tokens))
    assert acquired is not None
    source.lease = acquired.lease
    cache.commit(acquired.lease, pack_ids(source_tokens), computed_len)
    source.computed_len = computed_len
    match = cache.match(pack_ids(prompt), Namespace())
    tail = best_private_tail(make_req(prompt), match, [source], block_size=4)
    if tail is None:
        return 0
    assert tail.block == acquired.lease.table[match.matched_len // 4]
    return tail.num_tokens


@pytest.mark.parametrize(
    ("computed_len", "prompt", "expected"),
    [
        (6, [1, 2, 3, 4, 5, 6, 7, 8], 2),
        (7, [1, 2, 3, 4, 5, 6, 9, 9], 2),
        (7, [1, 2, 3, 4, 5, 6], 1),
        (7, [1, 2, 3, 9, 5], 0),
        (4, [1, 2, 3, 4, 5, 6], 0),
        (3, [1, 2, 3, 4, 5, 6], 3),
        (0, [1, 2, 3, 4, 5, 6], 0),
    ],
)
def test_a_private_tail_is_what_was_computed_and_agrees(
    computed_len: int, prompt: list[int], expected: int
) -> None:
    assert tail_from([1, 2, 3, 4, 5, 6, 7, 8], computed_len, prompt) == expected
