"""Deadlines, priorities that take a running one's place, and fairness between tenants."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve.core.service import OUTPUT_WEIGHT, AttainedService
from radixserve.types import FinishReason
from tests.kit.builders import Rig


def fresh(length: int, seed: int) -> list[int]:
    """A prompt that shares nothing with that of another seed."""
    return [1000 * seed + i for i in range(length)]


def make_rig(**config: Any) -> Rig:
    return Rig(num_blocks=64, vocab_size=1 << 20, **{"schedule_policy": "sweep", **config})


# -- deadlines -----------------------------------------------------------------------------------


def test_a_waiting_request_whose_time_is_up_ends_without_a_token() -> None:
    rig = make_rig(max_num_seqs=1)
    rig.add("running", fresh(4, 1), max_tokens=10)
    rig.step()
    rig.add("late", fresh(4, 2), max_tokens=10, deadline=3.0)
    rig.drain()

    assert rig.reason("late") is FinishReason.TIMEOUT
    assert rig.tokens["late"] == []
    assert rig.tokens["running"] == rig.expected("running")


def test_a_running_request_whose_time_is_up_ends_with_what_it_has() -> None:
    rig = make_rig()
    rig.add("late", fresh(4, 1), max_tokens=10, deadline=3.0)
    rig.drain()

    assert rig.reason("late") is FinishReason.TIMEOUT
    assert rig.tokens["late"] == rig.expected("late")[:3]


def test_the_deadline_of_a_name_that_was_used_before_is_forgotten_with_it() -> None:
    rig = make_rig()
    rig.add("a", fresh(4, 1), max_tokens=1, deadline=4.0)
    rig.drain()
    rig.finals.clear()
    rig.tokens.clear()
    rig.add("a", fresh(4, 2), max_tokens=10)
    rig.drain()

    assert rig.reason("a") is FinishReason.LENGTH


# -- priorities ----------------------------------------------------------------------------------


def test_an_urgent_request_takes_the_seat_of_the_youngest_of_the_lowest_class() -> None:
    rig = make_rig(max_num_seqs=2)
    rig.add("low", fresh(4, 1), max_tokens=10)
    rig.step()
    rig.add("lower", fresh(4, 2), max_tokens=10, priority=-1)
    rig.step()
    rig.add("urgent", fresh(4, 3), max_tokens=4, priority=5)
    rig.step()

    assert rig.is_running("urgent")
    assert rig.is_running("low")
    assert not rig.is_running("lower")
    rig.drain()
    rig.assert_all_as_if_alone()


def test_nobody_gives_way_to_an_equal() -> None:
    rig = make_rig(max_num_seqs=1)
    rig.add("first", fresh(4, 1), max_tokens=6)
    rig.step()
    rig.add("second", fresh(4, 2), max_tokens=6)
    rig.drain()

    assert rig.scheduler.counters.preemptions == 0


def test_a_stream_of_urgent_requests_makes_a_low_one_give_way_only_once() -> None:
    rig = make_rig(max_num_seqs=1, aged_every=4)
    rig.add("low", fresh(4, 0), max_tokens=8)
    rig.step()
    for i in range(60):
        rig.add(f"urgent{i}", fresh(4, 1 + i), max_tokens=2, priority=1)
        rig.step()

    assert "low" in rig.finals
    rig.drain()
    rig.assert_all_as_if_alone()


@pytest.mark.parametrize("policy", ["fcfs", "dfs"])
def test_policies_without_priorities_preempt_nobody_for_them(policy: str) -> None:
    rig = make_rig(max_num_seqs=1, schedule_policy=policy)
    rig.add("low", fresh(4, 1), max_tokens=6)
    rig.step()
    rig.add("urgent", fresh(4, 2), max_tokens=2, priority=9)
    rig.drain()

    assert rig.scheduler.counters.preemptions == 0


# -- fairness ------------------------------------------------------------------------------------


def test_a_tenant_with_few_requests_is_not_stuck_behind_one_with_many() -> None:
    rig = make_rig(max_num_seqs=1, schedule_policy="fair")
    for i in range(20):
        rig.add(f"many{i}", fresh(8, i), max_tokens=2, tenant="many")
    for i in range(3):
        rig.add(f"few{i}", fresh(8, 100 + i), max_tokens=2, tenant="few")
    rig.drain()

    order = list(rig.finals)
    assert max(order.index(f"few{i}") for i in range(3)) <= 6


def test_equal_tenants_get_equal_shares() -> None:
    rig = make_rig(max_num_seqs=1, schedule_policy="fair")
    for tenant in ("x", "y", "z"):
        for i in range(10):
            rig.add(f"{tenant}{i}", fresh(8, ord(tenant) * 100 + i), max_tokens=2, tenant=tenant)
    rig.drain()

    order = list(rig.finals)
    shares = Counter(name[0] for name in order[:15])
    assert set(shares.values()) == {5}


@given(rows=st.lists(st.tuples(st.sampled_from("xyz"), st.integers(1, 50), st.booleans())))
def test_service_is_weighted_tokens(rows: list[tuple[str, int, bool]]) -> None:
    service = AttainedService()
    expected: Counter[str] = Counter()
    for tenant in "xyz":
        service.arrive(tenant)
    for tenant, num_computed, has_token in rows:
        service.serve(tenant, num_computed, int(has_token))
        expected[tenant] += num_computed
        if has_token:
            expected[tenant] += OUTPUT_WEIGHT - 1  # type: ignore[assignment]

    assert {tenant: service.attained(tenant) for tenant in "xyz"} == {
        tenant: float(expected[tenant]) for tenant in "xyz"
    }


def test_a_newcomer_starts_level_with_the_least_served_and_is_forgotten_when_it_leaves() -> None:
    service = AttainedService()
    service.arrive("old")
    service.serve("old", 100, 0)
    service.arrive("new")
    assert service.attained("new") == 100.0

    service.leave("new")
    assert service.attained("new") == 0.0
