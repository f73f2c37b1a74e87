"""What the datasets share and what they do not, and that a seed decides all of it."""

from __future__ import annotations

import json
import random
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve.bench.arrivals import arrival_times
from radixserve.bench.custom import read_custom
from radixserve.bench.datasets import (
    Span,
    agent_tree,
    conversations,
    independent,
    prefix_repetition,
    shared_groups,
)
from radixserve.bench.dialogue import Form, start_dialogues
from radixserve.bench.presets import PRESETS
from radixserve.bench.wording import IdWording, TextWording
from radixserve.bench.workload import Drawn, num_requests
from radixserve.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from radixserve.bench.workload import Session

RANGE = (300, 20_000)


def first_prompts(sessions: Sequence[Session], seed: int = 1) -> list[list[int]]:
    """The token ids of each session's first request."""
    prompts = []
    for dialogue in start_dialogues(sessions, Form.IDS, seed=seed, id_range=RANGE):
        prompt = dialogue.ask(dialogue.session.turns[0])
        assert isinstance(prompt, list)
        prompts.append([token for token in prompt if isinstance(token, int)])
    return prompts


def num_distinct(prompts: Sequence[Sequence[int]], start: int, end: int) -> int:
    """How many different prompts there are up to `end` that are long enough, from `start` on."""
    return len({tuple(prompt[start:end]) for prompt in prompts})


def distinct_tokens(prompts: Sequence[Sequence[int]]) -> int:
    """Nodes of a tree of tokens: what a cache without end has to compute."""
    return len({tuple(prompt[:end]) for prompt in prompts for end in range(1, len(prompt) + 1)})


@pytest.mark.parametrize("name", PRESETS)
@given(seed=st.integers(0, 1 << 32))
def test_a_preset_is_decided_by_its_seed(name: str, seed: int) -> None:
    assert PRESETS[name](seed, 10) == PRESETS[name](seed, 10)
    assert first_prompts(PRESETS[name](seed, 3), seed) != first_prompts(
        PRESETS[name](seed, 3), seed + 1
    )


def test_few_shot_questions_share_exactly_their_prefix() -> None:
    prompts = first_prompts(PRESETS["w1"](1, None))
    assert len(prompts) == 64
    assert num_distinct(prompts, 0, 1000) == 1
    assert num_distinct(prompts, 1000, 1030) == 64
    assert {len(prompt) - 1000 for prompt in prompts} <= set(range(30, 61))
    assert len({len(prompt) for prompt in prompts}) > 10
    assert {turn.output_len for each in PRESETS["w1"](1, None) for turn in each.turns} == {32}


def test_the_chat_has_eight_conversations_of_five_turns_behind_one_system_prompt() -> None:
    sessions = PRESETS["w2"](1, None)
    assert [len(session.turns) for session in sessions] == [5] * 8
    assert num_requests(sessions) == 40
    assert len({session.system for session in sessions}) == 1
    users = [turn.pieces[0] for session in sessions for turn in session.turns]
    assert all(isinstance(user, Drawn) and 40 <= user.length <= 120 for user in users)
    assert len(set(users)) == 40
    assert num_requests(PRESETS["w2"](1, 12)) == 10


def test_the_agent_tree_branches_four_by_four_by_four() -> None:
    prompts = first_prompts(PRESETS["w3"](1, None))
    assert {len(prompt) for prompt in prompts} == {940}
    assert [num_distinct(prompts, 0, end) for end in (600, 900, 940)] == [4, 16, 64]
    assert distinct_tokens(prompts) == 4 * 600 + 16 * 300 + 64 * 40
    assert first_prompts(PRESETS["w3"](1, 5)) == prompts[:5]


def test_without_sharing_nothing_is_shared() -> None:
    prompts = first_prompts(PRESETS["w4"](1, None))
    assert (len(prompts), {len(prompt) for prompt in prompts}) == (48, {400})
    assert num_distinct(prompts, 0, 4) == 48


def test_presets_share_nothing_with_each_other() -> None:
    starts = [tuple(first_prompts(make(1, 5))[0][:30]) for make in PRESETS.values()]
    assert len(set(starts)) == len(PRESETS)


@given(
    count=st.integers(1, 40),
    num_prefixes=st.integers(1, 40),
    seed=st.integers(0, 100),
)
def test_prefixes_are_repeated_evenly(count: int, num_prefixes: int, seed: int) -> None:
    def make() -> list[Session]:
        return prefix_repetition(
            count, num_prefixes=num_prefixes, prefix_len=8, suffix_len=4, output_len=2, seed=seed
        )

    if count < num_prefixes:
        with pytest.raises(ConfigError, match="at least as many prompts"):
            make()
        return
    prompts = first_prompts(make())
    uses = Counter(tuple(prompt[:8]) for prompt in prompts)
    assert len(uses) == num_prefixes
    assert max(uses.values()) - min(uses.values()) <= 1
    assert num_distinct(prompts, 8, 12) == count


def test_groups_share_a_system_prompt() -> None:
    sessions = shared_groups(
        num_groups=3, prompts_per_group=4, system_len=20, question_len=5, output_len=7, seed=0
    )
    prompts = first_prompts(sessions)
    assert sorted(Counter(tuple(prompt[:20]) for prompt in prompts).values()) == [4, 4, 4]
    assert {len(prompt) for prompt in prompts} == {25}


def test_a_tree_needs_a_length_a_level() -> None:
    with pytest.raises(ConfigError, match="a length a level"):
        agent_tree((2, 2), (5,), 1, seed=0)


@given(middle=st.integers(1, 5000), ratio=st.floats(0, 0.99), seed=st.integers(0, 50))
def test_lengths_stay_within_their_ratio(middle: int, ratio: float, seed: int) -> None:
    span = Span.around(middle, ratio)
    length = span.draw(random.Random(seed))
    assert max(1, round(middle * (1 - ratio))) <= length <= max(1, round(middle * (1 + ratio)))


@pytest.mark.parametrize("ratio", [-0.1, 1.0, float("nan")])
def test_a_ratio_out_of_range_is_refused(ratio: float) -> None:
    with pytest.raises(ConfigError, match="range ratio"):
        Span.around(10, ratio)


def test_random_prompts_may_share_a_prefix() -> None:
    prompts = first_prompts(independent(4, Span(6, 6), Span(1, 1), seed=0, prefix_len=5))
    assert num_distinct(prompts, 0, 5) == 1
    assert num_distinct(prompts, 5, 11) == 4


def test_words_are_as_many_as_asked_for_and_the_same_in_every_process() -> None:
    text = TextWording(3).of(Drawn("a", 50))
    assert len(text.split()) == 50
    assert text == TextWording(3).of(Drawn("a", 50))
    assert text != TextWording(4).of(Drawn("a", 50))
    assert IdWording(0, (5, 9)).of(Drawn("a", 12)) == (8, 6, 5, 8, 6, 8, 5, 8, 8, 7, 6, 5)


@pytest.mark.parametrize("id_range", [(5, 5), (-1, 4), (9, 3)])
def test_an_empty_range_of_ids_is_refused(id_range: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match="LOW:HIGH"):
        IdWording(0, id_range)


# A session's next prompt


def conversation() -> list[Session]:
    """One conversation of two turns."""
    return conversations(
        1, num_turns=2, system_len=3, users=Span(2, 2), output_len=4, seed=0, name="c"
    )


def test_the_real_answer_is_in_the_next_prompt_as_ids() -> None:
    [dialogue] = start_dialogues(conversation(), Form.IDS, seed=0, id_range=RANGE)
    first, second = dialogue.session.turns
    asked = dialogue.ask(first)
    assert isinstance(asked, list)
    assert len(asked) == 5
    dialogue.answered("ignored", [7, 8, 9])
    then = dialogue.ask(second)
    assert isinstance(then, list)
    assert then[:8] == [*asked, 7, 8, 9]
    assert len(then) == 10


def test_the_real_answer_is_in_the_next_prompt_as_text() -> None:
    [dialogue] = start_dialogues(conversation(), Form.TEXT, seed=0, id_range=RANGE)
    first, second = dialogue.session.turns
    asked = dialogue.ask(first)
    assert isinstance(asked, str)
    dialogue.answered(" so it is", [])
    then = dialogue.ask(second)
    assert isinstance(then, str)
    assert then.startswith(f"{asked} so it is\nUser: ")
    assert then.endswith("\nAssistant:")


def test_the_real_answer_is_in_the_next_prompt_as_a_message() -> None:
    [dialogue] = start_dialogues(conversation(), Form.CHAT, seed=0, id_range=RANGE)
    first, second = dialogue.session.turns
    dialogue.ask(first)
    dialogue.answered("so it is", [])
    messages = dialogue.ask(second)
    roles = [message["role"] for message in messages if isinstance(message, dict)]
    assert roles == ["system", "user", "assistant", "user"]
    assert isinstance(messages[2], dict)
    assert messages[2]["content"] == "so it is"


# Custom prompts


def test_custom_prompts_are_sent_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    lines = [{"prompt": "  as is "}, {"prompt": [4, 5], "output_tokens": 3}, {"prompt": "c"}]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n", encoding="utf-8")
    sessions = read_custom(path, count=2, output_len=9)
    assert [session.turns[0].output_len for session in sessions] == [9, 3]
    for form in (Form.IDS, Form.TEXT):
        dialogues = start_dialogues(sessions, form, seed=0, id_range=RANGE)
        prompts = [each.ask(each.session.turns[0]) for each in dialogues]
        assert prompts == ["  as is ", [4, 5]]
    text, ids = start_dialogues(sessions, Form.CHAT, seed=0, id_range=RANGE)
    assert text.ask(text.session.turns[0]) == [{"role": "user", "content": "  as is "}]
    with pytest.raises(ConfigError, match="token ids"):
        ids.ask(ids.session.turns[0])


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "[1]",
        "{}",
        '{"prompt": ""}',
        '{"prompt": []}',
        '{"prompt": [1, "a"]}',
        '{"prompt": [true]}',
        '{"prompt": "a", "output_tokens": 0}',
        '{"prompt": "a", "output_tokens": "5"}',
    ],
)
def test_a_line_that_is_not_understood_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'{{"prompt": "fine"}}\n{line}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"prompts\.jsonl:2: "):
        read_custom(path, count=None, output_len=1)


def test_a_file_without_prompts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="no prompts"):
        read_custom(tmp_path / "empty.jsonl", count=None, output_len=1)
    with pytest.raises(ConfigError, match="cannot read"):
        read_custom(tmp_path / "absent.jsonl", count=None, output_len=1)


# Arrivals


@given(count=st.integers(0, 200), rate=st.floats(0.1, 1e4), seed=st.integers(0, 100))
def test_arrivals_ascend_from_zero(count: int, rate: float, seed: int) -> None:
    times = arrival_times(count, rate, seed=seed)
    assert len(times) == count
    assert times == sorted(times)
    assert times[:1] == [0.0][:count]
    assert times == arrival_times(count, rate, seed=seed)


def test_arrivals_come_at_their_rate_with_the_spread_of_a_poisson_process() -> None:
    times = arrival_times(20_001, 5.0, seed=1)
    gaps = [after - before for before, after in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert mean == pytest.approx(0.2, rel=0.05)
    assert variance == pytest.approx(0.04, rel=0.1)


def test_an_infinite_rate_sends_all_at_once() -> None:
    assert arrival_times(3, float("inf"), seed=0) == [0.0] * 3


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_rate_must_be_positive(rate: float) -> None:
    with pytest.raises(ConfigError, match="above 0"):
        arrival_times(3, rate, seed=0)
