from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve.core.policy import POLICIES, RANKED_WINDOW, QueuePolicy, find_policy
from radixserve.core.preemption import queue_order
from radixserve.core.req import Req
from radixserve.errors import ConfigError
from tests.kit.builders import make_spec

WAITING = st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 3), st.booleans()), max_size=12)
"""(priority, cached tokens, aged) of each waiting Req."""


def queue(priorities: list[int]) -> list[Req]:
    """Reqs in queue order."""
    reqs = [
        Req(make_spec(f"r{i}", [1], priority=priority), arrival=i, now=0.0)
        for i, priority in enumerate(priorities)
    ]
    return sorted(reqs, key=queue_order)


def ordered(
    policy: QueuePolicy, waiting: list[Req], facts: list[tuple[int, int, bool]]
) -> list[Req]:
    return policy(
        tuple(waiting),
        cached_len=lambda req: facts[req.arrival][1],
        is_aged=lambda req: facts[req.arrival][2],
    )


@pytest.mark.parametrize("name", sorted(POLICIES))
@given(facts=WAITING)
def test_a_policy_returns_a_permutation_that_keeps_priorities_apart(
    name: str, facts: list[tuple[int, int, bool]]
) -> None:
    waiting = queue([priority for priority, _, _ in facts])

    order = ordered(find_policy(name), waiting, facts)

    assert sorted(order, key=id) == sorted(waiting, key=id)
    priorities = [req.spec.priority for req in order]
    assert priorities == sorted(priorities, reverse=True)


@given(facts=WAITING)
def test_lpm_puts_the_aged_first_then_the_longest_cached_and_is_stable(
    facts: list[tuple[int, int, bool]],
) -> None:
    order = ordered(find_policy("lpm"), queue([p for p, _, _ in facts]), facts)

    for before, after in pairwise(order):
        if before.spec.priority != after.spec.priority:
            continue
        _, cached_before, aged_before = facts[before.arrival]
        _, cached_after, aged_after = facts[after.arrival]
        assert aged_before >= aged_after
        if not aged_before:
            assert cached_before >= cached_after
        if aged_after or (not aged_before and cached_before == cached_after):
            assert before.arrival < after.arrival


@given(facts=WAITING)
def test_fcfs_is_queue_order_whatever_is_cached(facts: list[tuple[int, int, bool]]) -> None:
    waiting = queue([priority for priority, _, _ in facts])

    assert ordered(find_policy("fcfs"), waiting, facts) == waiting


def test_lpm_matches_only_a_window_of_the_queue() -> None:
    waiting = queue([0] * (RANKED_WINDOW + 10))
    asked = []

    order = find_policy("lpm")(
        waiting,
        cached_len=lambda req: asked.append(req) or req.arrival,  # type: ignore[func-returns-value]
        is_aged=lambda req: False,
    )

    assert asked == waiting[:RANKED_WINDOW]
    assert order[:RANKED_WINDOW] == waiting[:RANKED_WINDOW][::-1]
    assert order[RANKED_WINDOW:] == waiting[RANKED_WINDOW:]


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="fcfs, lpm; got 'magic'"):
        find_policy("magic")
