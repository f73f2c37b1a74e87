"""The steps between a call's sequences and its choices, one at a time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from radixserve.engine.request import TextDelta, Usage
from radixserve.server.choice_deltas import BestOf, WholePrompts, WithoutOutput, mean_logprob
from radixserve.server.protocol.usage import UsageTally
from radixserve.types import FinishReason, TokenLogprob

if TYPE_CHECKING:
    from collections.abc import Sequence

A, B, C = (TokenLogprob(token, -float(token), 1) for token in (1, 2, 3))


def delta(
    *,
    tokens: Sequence[int] = (),
    logprobs: Sequence[TokenLogprob] = (),
    prompt: Sequence[TokenLogprob] = (),
    reason: FinishReason | None = None,
) -> TextDelta:
    text = "x" * len(tokens)
    usage = Usage(10, 4, len(tokens))
    return TextDelta(text, tuple(tokens), reason, None, usage, tuple(logprobs), tuple(prompt))


def test_a_prompts_scores_come_whole_with_the_first_output() -> None:
    step = WholePrompts(1)
    assert not list(step.push(0, delta(prompt=[A])))
    [(index, first)] = step.push(0, delta(tokens=[7], prompt=[B]))
    assert (index, first.token_ids, first.prompt_logprobs) == (0, (7,), (A, B))
    later = delta(tokens=[8])
    assert list(step.push(0, later)) == [(0, later)]


def test_siblings_wait_for_the_first_and_are_told_the_same() -> None:
    step = WholePrompts(2)
    assert not list(step.push(1, delta(tokens=[5])))
    assert not list(step.push(1, delta(tokens=[6], reason=FinishReason.STOP)))
    assert not list(step.push(3, delta(tokens=[9])))
    begun = list(step.push(0, delta(tokens=[4], prompt=[C])))
    assert [index for index, _ in begun] == [0, 1]
    assert [one.prompt_logprobs for _, one in begun] == [(C,), (C,)]
    assert begun[1][1].token_ids == (5, 6)
    assert begun[1][1].finish_reason is FinishReason.STOP
    assert [index for index, _ in step.push(2, delta(tokens=[1], prompt=[A]))] == [2, 3]


def test_an_output_that_is_not_wanted_leaves_its_prompt() -> None:
    given = delta(tokens=[4], logprobs=[A], prompt=[B], reason=FinishReason.STOP)
    [(index, bare)] = WithoutOutput().push(5, given)
    assert index == 5
    assert (bare.text, bare.token_ids, bare.logprobs) == ("", (), ())
    assert bare.prompt_logprobs == (B,)
    assert bare.finish_reason is FinishReason.LENGTH
    assert bare.usage == Usage(10, 4, 0)


def test_the_best_of_each_prompt_come_first_under_the_numbers_of_choices() -> None:
    step = BestOf(made=3, kept=2)
    for index, entries in enumerate([[C], [A], [B], [A, A], [C, A], [B]]):
        assert not list(step.push(index, delta(tokens=[index], logprobs=entries)))
    told = [(index, one.token_ids) for index, one in step.end()]
    assert told == [(0, (1,)), (1, (2,)), (2, (3,)), (3, (4,))]


def test_equals_keep_their_order_and_nothing_is_worse_than_no_tokens() -> None:
    step = BestOf(made=3, kept=3)
    for index, entries in enumerate([[], [B], [B]]):
        list(step.push(index, delta(tokens=[index], logprobs=entries)))
    assert [one.token_ids for _, one in step.end()] == [(1,), (2,), (0,)]
    assert mean_logprob([delta()]) == -math.inf
    assert mean_logprob([delta(logprobs=[A]), delta(logprobs=[C])]) == pytest.approx(-2.0)


def test_a_tally_counts_a_prompt_once_and_its_first_sequences_cache() -> None:
    tally = UsageTally(2)
    tally.see(1, Usage(10, 9, 3))
    assert tally.json()["prompt_tokens_details"] == {"cached_tokens": 9}
    tally.see(0, Usage(10, 2, 1, forced_tokens=1))
    tally.see(0, Usage(10, 2, 4, forced_tokens=2))
    tally.see(2, Usage(7, 0, 1))
    assert tally.json() == {
        "prompt_tokens": 17,
        "completion_tokens": 8,
        "total_tokens": 25,
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {"forced_tokens": 2},
    }
