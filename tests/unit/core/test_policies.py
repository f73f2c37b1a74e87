"""The orders of the waiting queue: permutations, sweeps, fairness and the bound on every wait."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve.core.common_prefix import common_prefix_len
from radixserve.core.policies import POLICIES, QueuePolicy, make_policy
from radixserve.core.policies.arrival import FirstComeFirstServed
from radixserve.core.policies.longest_prefix import RANKED_WINDOW
from radixserve.core.req import Req
from radixserve.core.waiting import WaitingQueue
from radixserve.errors import ConfigError
from tests.kit.builders import make_spec

if TYPE_CHECKING:
    from collections.abc import Mapping

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=6)
WAITING = st.lists(st.tuples(TOKENS, st.integers(-1, 1), st.sampled_from("xyz")), max_size=16)
"""(prompt, priority, tenant) of each waiting Req."""


class View:
    """A `QueueView` with given facts."""

    def __init__(
        self,
        cached: Mapping[int, int] | None = None,
        attained: Mapping[str, float] | None = None,
    ) -> None:
        self._cached, self._attained = cached or {}, attained or {}

    def cached_len(self, req: Req) -> int:
        return self._cached.get(req.arrival, 0)

    def attained(self, tenant: str) -> float:
        return self._attained.get(tenant, 0.0)


def make_waiting(policy: QueuePolicy, facts: list[tuple[list[int], int, str]]) -> WaitingQueue:
    queue = WaitingQueue(policy.sort_key)
    for i, (prompt, priority, tenant) in enumerate(facts):
        spec = replace(make_spec(f"r{i}", prompt, priority=priority), tenant=tenant)
        queue.add(Req(spec, arrival=i))
    return queue


def admit_all(policy: QueuePolicy, queue: WaitingQueue, view: View) -> list[Req]:
    """Admit whoever the policy names first, until nobody waits."""
    order = []
    while (req := next(policy.candidates(queue, view), None)) is not None:
        queue.remove(req)
        policy.admitted(req)
        order.append(req)
    return order


@pytest.mark.parametrize("name", sorted(POLICIES))
@given(facts=WAITING, every=st.integers(1, 5))
def test_every_policy_names_each_waiting_req_once(
    name: str, facts: list[tuple[list[int], int, str]], every: int
) -> None:
    policy = make_policy(name, aged_every=every)
    queue = make_waiting(policy, facts)

    once = list(policy.candidates(queue, View()))
    assert sorted(req.arrival for req in once) == list(range(len(facts)))

    order = admit_all(policy, queue, View())
    assert sorted(req.arrival for req in order) == list(range(len(facts)))
    assert queue.num_tokens == 0


@given(facts=WAITING)
def test_fcfs_keeps_the_order_of_arrival(facts: list[tuple[list[int], int, str]]) -> None:
    policy = make_policy("fcfs")

    order = admit_all(policy, make_waiting(policy, facts), View())

    assert [req.arrival for req in order] == list(range(len(facts)))


@pytest.mark.parametrize("name", ["priority", "lpm", "sweep", "fair"])
@given(facts=WAITING)
def test_higher_priorities_go_first_between_the_turns_of_age(
    name: str, facts: list[tuple[list[int], int, str]]
) -> None:
    policy = make_policy(name, aged_every=1000)

    order = admit_all(policy, make_waiting(policy, facts), View())

    priorities = [req.spec.priority for req in order]
    assert priorities == sorted(priorities, reverse=True)


@given(facts=WAITING, cached=st.lists(st.integers(0, 9), min_size=16, max_size=16))
def test_lpm_takes_the_longest_cached_prefix_of_a_priority(
    facts: list[tuple[list[int], int, str]], cached: list[int]
) -> None:
    policy = make_policy("lpm")
    view = View(dict(enumerate(cached)))

    order = admit_all(policy, make_waiting(policy, facts), view)

    for before, after in pairwise(order):
        if before.spec.priority == after.spec.priority:
            assert view.cached_len(before) >= view.cached_len(after)


def test_lpm_ranks_only_the_oldest_few() -> None:
    policy = make_policy("lpm")
    queue = make_waiting(policy, [([1], 0, "") for _ in range(RANKED_WINDOW + 1)])
    last = RANKED_WINDOW

    order = [req.arrival for req in policy.candidates(queue, View({last: 9, last - 1: 5}))]

    assert order[0] == last - 1
    assert order[-1] == last


@given(prompts=st.lists(TOKENS, min_size=1, max_size=16))
def test_dfs_finishes_a_subtree_before_it_leaves_it(prompts: list[list[int]]) -> None:
    policy = make_policy("dfs")

    order = admit_all(policy, make_waiting(policy, [(p, 0, "") for p in prompts]), View())

    keys = [req.spec.prompt for req in order]
    for i, (here, there) in enumerate(pairwise(keys)):
        shared = common_prefix_len(here, there)
        # Whoever comes later shares no more with this one than its successor does.
        assert all(common_prefix_len(here, later) <= shared for later in keys[i + 2 :])


def test_a_sweep_takes_newcomers_ahead_of_it_and_comes_back_for_those_behind() -> None:
    policy = make_policy("sweep")
    queue = make_waiting(policy, [([5, 1], 0, ""), ([5, 3], 0, ""), ([7], 0, "")])
    taken = []
    for newcomer in ([5, 2], [4], None, None, None):
        req = next(policy.candidates(queue, View()))
        queue.remove(req)
        policy.admitted(req)
        taken.append(req.arrival)
        if newcomer:
            arrival = 10 + newcomer[-1]
            queue.add(Req(make_spec(f"n{arrival}", newcomer), arrival=arrival))

    assert taken == [0, 12, 1, 2, 14]


@pytest.mark.parametrize("name", ["sweep", "fair"])
@given(facts=WAITING, every=st.integers(1, 4), arrivals=st.data())
def test_nobody_waits_longer_than_the_bound(
    name: str,
    facts: list[tuple[list[int], int, str]],
    every: int,
    arrivals: st.DataObject,
) -> None:
    """With newcomers at every admission, m older Reqs mean (m + 1) * every admissions at most."""
    policy = make_policy(name, aged_every=every)
    queue = make_waiting(policy, facts)
    limits = {req.arrival: (i + 1) * every for i, req in enumerate(queue)}
    for count in range(1, max(limits.values(), default=0) + 1):
        req = next(policy.candidates(queue, View()))
        queue.remove(req)
        policy.admitted(req)
        assert count <= limits.pop(req.arrival, count)
        prompt, priority, tenant = arrivals.draw(st.tuples(TOKENS, st.just(2), st.just("w")))
        spec = replace(make_spec(f"n{count}", prompt, priority=priority), tenant=tenant)
        queue.add(Req(spec, arrival=1000 + count))

    assert not limits


def test_fair_serves_the_least_served_tenant() -> None:
    policy = make_policy("fair")
    queue = make_waiting(policy, [([1], 0, "x"), ([2], 0, "y"), ([3], 0, "z"), ([4], 1, "x")])

    order = list(policy.candidates(queue, View(attained={"x": 9.0, "y": 2.0, "z": 5.0})))

    assert [req.arrival for req in order] == [3, 1, 2, 0]


def test_a_policy_can_be_named_by_import_path() -> None:
    path = "radixserve.core.policies.arrival:FirstComeFirstServed"

    assert isinstance(make_policy(path), FirstComeFirstServed)


@pytest.mark.parametrize("name", ["", "lru", "no.such:Thing", "radixserve.types:Nothing"])
def test_an_unknown_policy_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match="schedule_policy"):
        make_policy(name)
