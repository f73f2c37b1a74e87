"""How likely tokens were: against a sort of the whole vocabulary, with equals ranked by id."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from radixserve.runtime.logprobs import token_logprobs

LEVELS = [-2.0, -0.0, 0.0, 0.5, 3.0]
ROWS = st.lists(st.lists(st.sampled_from(LEVELS), min_size=7, max_size=7), min_size=1, max_size=4)


@given(ROWS, st.integers(0, 9), st.data())
def test_they_are_those_of_a_sorted_vocabulary(
    rows: list[list[float]], num_top: int, data: st.DataObject
) -> None:
    tokens = [data.draw(st.integers(0, 6)) for _ in rows]

    found = token_logprobs(torch.tensor(rows), tokens, num_top, vocab_limit=7)

    for row, token, logprob in zip(rows, tokens, found, strict=True):
        exact = torch.tensor(row).log_softmax(0).tolist()
        ranked = sorted(range(7), key=lambda i: (-row[i], i))
        assert logprob.token_id == token
        assert logprob.logprob == pytest.approx(exact[token], abs=1e-6)
        assert logprob.rank == ranked.index(token) + 1
        assert [i for i, _ in logprob.top] == ranked[:num_top]
        assert [v for _, v in logprob.top] == pytest.approx([exact[i] for i, _ in logprob.top])


@given(ROWS, st.integers(1, 6))
def test_asking_for_fewer_gives_the_first_of_more(rows: list[list[float]], num_top: int) -> None:
    tokens = [0] * len(rows)
    few = token_logprobs(torch.tensor(rows), tokens, num_top, vocab_limit=7)
    all_of_them = token_logprobs(torch.tensor(rows), tokens, 7, vocab_limit=7)

    assert [one.top for one in few] == [one.top[:num_top] for one in all_of_them]


def test_padding_of_the_head_has_no_share() -> None:
    logits = torch.tensor([[0.0, 1.0, 99.0]])

    [found] = token_logprobs(logits, [1], 3, vocab_limit=2)

    assert [i for i, _ in found.top] == [1, 0]
    assert found.logprob == pytest.approx(torch.tensor([0.0, 1.0]).log_softmax(0)[1].item())
