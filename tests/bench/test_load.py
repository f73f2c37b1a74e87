"""Sending: order, places, failures. The target answers after as many turns of the loop as asked."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from radixserve.bench.datasets import Span, conversations
from radixserve.bench.dialogue import Form, start_dialogues
from radixserve.bench.load import Load, run_load
from radixserve.bench.target import Failure, Outcome, Stopwatch, TokenCounts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.bench.dialogue import Prompt

ANSWER = [1, 2, 3]


class Patient:
    """Answers each request after a few turns of the loop. Implements `Target`."""

    def __init__(self, failing: Sequence[str] = ()) -> None:
        self.sent: list[str] = []
        self.prompts: dict[str, Prompt] = {}
        self.most = self._running = 0
        self._failing = failing

    async def send(self, name: str, prompt: Prompt, output_len: int) -> Outcome:
        self.sent.append(name)
        self.prompts[name] = prompt
        self._running += 1
        self.most = max(self.most, self._running)
        watch = Stopwatch(name)
        for _ in range(output_len):
            await asyncio.sleep(0)
            watch.chunk("x", ANSWER)
        self._running -= 1
        failure = Failure("HTTP 500", "told to") if name in self._failing else None
        return watch.stop(TokenCounts(), failure)


def run(
    target: Patient, *, count: int, turns: int, concurrency: int | None, rate_gap_s: float = 0.0
) -> Load:
    """Send some conversations to the target."""
    sessions = conversations(
        count, num_turns=turns, system_len=2, users=Span(3, 3), output_len=2, seed=0, name="c"
    )
    dialogues = start_dialogues(sessions, Form.IDS, seed=0, id_range=(10, 20))
    arrivals = [i * rate_gap_s for i in range(count)]
    return asyncio.run(run_load(dialogues, target, arrivals=arrivals, concurrency=concurrency))


@given(
    count=st.integers(1, 8),
    turns=st.integers(1, 4),
    concurrency=st.one_of(st.none(), st.integers(1, 9)),
)
def test_all_is_sent_in_its_order_and_within_the_places(
    count: int, turns: int, concurrency: int | None
) -> None:
    target = Patient()
    load = run(target, count=count, turns=turns, concurrency=concurrency)
    assert len(load.outcomes) == load.num_planned == count * turns
    assert target.most == min(count, concurrency or count)
    for i in range(count):
        own = [name for name in target.sent if name.startswith(f"c/{i}#")]
        assert own == [f"c/{i}#{turn}" for turn in range(turns)]


def test_with_one_place_conversations_go_on_side_by_side() -> None:
    target = Patient()
    run(target, count=3, turns=2, concurrency=1)
    assert target.sent == ["c/0#0", "c/1#0", "c/2#0", "c/0#1", "c/1#1", "c/2#1"]


def test_the_next_turn_carries_the_answer() -> None:
    target = Patient()
    run(target, count=1, turns=2, concurrency=None)
    first, second = target.prompts["c/0#0"], target.prompts["c/0#1"]
    assert isinstance(first, list)
    assert isinstance(second, list)
    assert second[: len(first) + 6] == [*first, *ANSWER, *ANSWER]


def test_a_conversation_ends_with_its_first_failure() -> None:
    target = Patient(failing=["c/1#0"])
    load = run(target, count=2, turns=3, concurrency=2)
    assert [name for name in target.sent if name.startswith("c/1")] == ["c/1#0"]
    assert (len(load.outcomes), load.num_planned) == (4, 6)
    assert [each.name for each in load.outcomes if each.failure] == ["c/1#0"]


def test_sessions_begin_when_they_arrive() -> None:
    target = Patient()
    load = run(target, count=3, turns=1, concurrency=None, rate_gap_s=0.02)
    assert load.duration_s >= 0.04
    assert target.sent == ["c/0#0", "c/1#0", "c/2#0"]


def test_an_answer_without_output_is_a_failure() -> None:
    outcome = Stopwatch("a").stop(TokenCounts(5, 0, 0))
    assert outcome.failure is not None
    assert outcome.failure.kind == "no output"
