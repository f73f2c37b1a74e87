from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from radixserve.core.preemption import choose_victim, queue_order
from radixserve.core.req import Req
from tests.kit.builders import make_spec


def running(*facts: tuple[int, int]) -> list[Req]:
    """Reqs in order of arrival from (priority, computed tokens)."""
    reqs = []
    for i, (priority, computed_len) in enumerate(facts):
        req = Req(make_spec(f"r{i}", [1] * 100, priority=priority), arrival=i, now=0.0)
        req.computed_len = computed_len
        reqs.append(req)
    return reqs


def victim_of(*facts: tuple[int, int]) -> str | None:
    victim = choose_victim(running(*facts), block_size=16)
    return None if victim is None else victim.req_id


def test_a_lone_request_is_never_the_victim() -> None:
    assert victim_of() is None
    assert victim_of((0, 20)) is None


def test_the_lowest_priority_gives_way_first() -> None:
    assert victim_of((1, 16), (0, 31), (2, 16)) == "r1"


def test_then_the_one_that_loses_fewest_unpublished_tokens() -> None:
    assert victim_of((0, 16), (0, 47), (0, 33), (0, 20)) == "r2"


def test_then_the_youngest() -> None:
    assert victim_of((0, 16), (0, 33), (0, 17), (0, 20)) == "r2"


def test_the_first_in_queue_order_is_spared_though_its_loss_is_smallest() -> None:
    assert victim_of((0, 16), (0, 31)) == "r1"
    assert victim_of((0, 16), (1, 31)) == "r0"


@given(st.lists(st.tuples(st.integers(-1, 1), st.integers(0, 40)), min_size=2, max_size=9))
def test_the_victim_is_never_the_head_and_never_above_another_candidate(
    facts: list[tuple[int, int]],
) -> None:
    reqs = running(*facts)
    head = min(reqs, key=queue_order)

    victim = choose_victim(reqs, block_size=4)

    assert victim is not None
    assert victim is not head
    others = [req for req in reqs if req is not head]
    assert victim.spec.priority == min(req.spec.priority for req in others)
