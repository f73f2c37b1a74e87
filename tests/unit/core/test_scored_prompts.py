"""Log-probabilities of prompt tokens: each position once, in order, whatever is cached."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from radixserve.types import ReqId
from tests.kit.builders import Rig

if TYPE_CHECKING:
    from radixserve.core.plan import StepPlan

PROMPT = list(range(100, 142))
STARTS = [0, 1, 2, 3, 4, 5, 8, 20, 40, 41, 42, 60]


def num_scored(start: int) -> int:
    """Positions of PROMPT that are told of."""
    return max(0, len(PROMPT) - max(1, start))


def told_once(rig: Rig, name: str, start: int) -> None:
    rig.assert_all_as_if_alone()
    assert len(rig.scores[name]) == num_scored(start)
    assert [told.token_id for told in rig.scores[name]] == PROMPT[max(1, start) :]


@pytest.mark.parametrize("start", [0, 3, 20, 41, 60])
@pytest.mark.parametrize(("block_size", "chunk_len"), [(1, None), (4, 1), (4, 5), (16, 7)])
def test_cold_and_warm(block_size: int, chunk_len: int | None, start: int) -> None:
    rig = Rig(num_blocks=256, block_size=block_size, prefill_chunk_len=chunk_len)
    for name in ("cold", "warm"):
        rig.add(name, PROMPT, max_tokens=3, scored_from=start)
        rig.drain()
        told_once(rig, name, start)


@pytest.mark.parametrize("start", STARTS)
def test_what_comes_before_the_first_position_asked_for_is_taken_from_the_cache(start: int) -> None:
    rig = Rig(num_blocks=64, block_size=4)
    rig.add("plain", PROMPT, max_tokens=1)
    rig.drain()
    before = rig.runner.computed_tokens

    rig.add("scored", PROMPT, max_tokens=1, scored_from=start)
    rig.drain()

    # The token before the first one asked for tells how likely that is. Ten blocks are published.
    cached = min(max(1, start) - 1, 40)
    assert rig.finals["scored"].cached_len == cached
    assert rig.runner.computed_tokens - before == len(PROMPT) - cached


@pytest.mark.parametrize("start", [0, 10, 30])
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_preempted_in_the_middle_of_the_prompt(
    mode: str, start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radixserve.core.admission.MIN_GROWTH_TOKENS", 0)
    rig = Rig(
        num_blocks=24, block_size=4, prefill_chunk_len=3, host_blocks=40, preemption_mode=mode
    )
    for i in range(4):
        rig.add(f"old {i}", [i], max_tokens=30)
    for _ in range(3):
        rig.step()
    rig.add("scored", PROMPT, max_tokens=20, scored_from=start)

    victims = []
    while rig.scheduler.has_work:
        before = rig.scheduler.counters.preemptions
        plan = rig.plan()
        if rig.scheduler.counters.preemptions > before and "scored" not in rig.finals:
            victims.append(rig.req("scored").num_preemptions)
        rig.land(plan)

    assert max(victims, default=0) > 0, "the prompt was never given up"
    told_once(rig, "scored", start)


def test_many_starts_on_one_prompt_at_once() -> None:
    rig = Rig(num_blocks=200, block_size=4, prefill_chunk_len=7)
    for start in STARTS:
        rig.add(f"from {start}", PROMPT, max_tokens=2, scored_from=start)
    rig.add("plain", PROMPT, max_tokens=2)

    rig.drain()

    for start in STARTS:
        told_once(rig, f"from {start}", start)
    assert rig.scores["plain"] == []


def test_options_after_one_prompt_compute_the_prompt_once() -> None:
    rig = Rig(num_blocks=200, block_size=4)
    for i in range(6):
        rig.add(f"option {i}", [*PROMPT, 200 + i, 300 + i], max_tokens=1, scored_from=len(PROMPT))

    rig.drain()

    rig.assert_all_as_if_alone()
    for i in range(6):
        assert [told.token_id for told in rig.scores[f"option {i}"]] == [200 + i, 300 + i]
    # Each follower computes the prompt's last token again: its logits tell of the option's first.
    assert rig.runner.computed_tokens == len(PROMPT) + 2 + 5 * 3


def test_a_child_of_a_fork_point_is_told_of_its_new_tokens_alone() -> None:
    rig = Rig(num_blocks=64, block_size=16)
    rig.add("parent", PROMPT, max_tokens=5, is_fork_point=True)
    rig.drain()
    tokens = [*PROMPT, *rig.tokens["parent"]]
    before = rig.runner.computed_tokens

    rig.add("child", [*tokens, 7, 8], fork_of="parent", max_tokens=1, scored_from=len(tokens))
    rig.drain()

    assert rig.runner.computed_tokens - before == 3
    assert [told.token_id for told in rig.scores["child"]] == [7, 8]
    rig.assert_all_as_if_alone()


def test_no_score_comes_after_the_first_token() -> None:
    rig = Rig(num_blocks=64, block_size=4, prefill_chunk_len=10)
    rig.add("a", PROMPT, max_tokens=5, scored_from=0)
    lengths = []

    while rig.scheduler.has_work:
        rig.step()
        lengths.append((len(rig.scores["a"]), len(rig.tokens["a"])))

    assert lengths == [
        (10, 0),
        (20, 0),
        (30, 0),
        (40, 0),
        *[(41, tokens) for tokens in range(1, 6)],
    ]


def test_an_aborted_request_is_told_no_more() -> None:
    rig = Rig(num_blocks=64, block_size=4, prefill_chunk_len=10)
    rig.add("a", PROMPT, max_tokens=5, scored_from=0)
    plan: StepPlan = rig.plan()
    rig.scheduler.abort(ReqId("a"))
    rig.land(plan)
    assert len(rig.scores["a"]) == 10

    rig.drain()

    assert len(rig.scores["a"]) == 10
    assert rig.cache.num_private_blocks == 0
