"""Options after one prompt: as likely as the model alone says, and the prompt computed once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from radixserve.engine.scoring import ScoreTerms, Scoring, score
from radixserve.errors import InvalidRequestError, PromptTooLongError
from tests.kit.likelihood import next_token_logprobs
from tests.kit.streams import idle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.engine.async_engine import AsyncEngine
    from tests.engine.conftest import StartEngine

PROMPT = [3 + (37 * i * i + 11 * i) % 317 for i in range(98)]
OPTIONS = [[7, 8, 9], [7, 8, 30, 31], [7], [200], [7, 8, 9], [*range(40, 90)], [40, 41, 99]]
CLOSE = 1e-5


def dense_logprobs(
    engine: AsyncEngine, prompt: Sequence[int], option: Sequence[int]
) -> list[float]:
    """Return an option's log-probabilities, computed at once and without any cache."""
    rows = next_token_logprobs(engine.core, [*prompt, *option])[len(prompt) - 1 : -1]
    return [float(row[token]) for row, token in zip(rows, option, strict=True)]


@pytest.mark.parametrize("block_size", [1, 16, 64])
@pytest.mark.parametrize("prefix_cache", [True, False])
async def test_scores_are_the_models_own(
    start_engine: StartEngine, block_size: int, prefix_cache: bool
) -> None:
    engine = await start_engine(
        num_blocks=4096 // block_size, block_size=block_size, prefix_cache=prefix_cache
    )
    for _ in range(2):  # cold, then with everything cached
        scores = await score(engine, PROMPT, OPTIONS)
        for option, found in zip(OPTIONS, scores, strict=True):
            expected = dense_logprobs(engine, PROMPT, option)
            assert [token.token_id for token in found.tokens] == option
            assert [token.logprob for token in found.tokens] == pytest.approx(expected, abs=CLOSE)
            assert found.logprob == pytest.approx(sum(expected), abs=CLOSE * len(option))
    await idle(engine)


async def test_the_prompt_is_computed_once(start_engine: StartEngine) -> None:
    engine = await start_engine(num_blocks=256, block_size=16)
    options = [[first, 5, 6] for first in range(100, 132)]
    await score(engine, PROMPT, options)

    # Besides the prompt: each option's tokens, and what the prompt's last block is filled with.
    stats = engine.stats()
    tail = len(PROMPT) % 16
    assert stats.prompt_tokens - stats.cached_tokens <= len(PROMPT) + len(options) * (tail + 3)
    assert stats.prompt_tokens == len(options) * (len(PROMPT) + 3)


async def test_what_options_share_is_scored_once() -> None:
    shared = [*range(40, 90)]
    scoring = Scoring(PROMPT, [[*shared, 1], [*shared, 2], shared, shared])
    starts = [request.params.prompt_logprobs_start for request in scoring.requests]
    assert starts == [len(PROMPT), len(PROMPT) + 50, len(PROMPT) + 50]


async def test_an_option_that_is_likeliest_all_along_says_so(start_engine: StartEngine) -> None:
    engine = await start_engine()
    best = int(next_token_logprobs(engine.core, PROMPT)[-1].argmax())
    likeliest, other = await score(engine, PROMPT, [[best], [best, 5]])
    assert likeliest.is_greedy
    assert likeliest.tokens[0].rank == 1
    assert other.is_greedy is (other.tokens[1].rank == 1)


async def test_requests_carry_their_terms() -> None:
    terms = ScoreTerms(cache_salt="s", priority=3, tenant="t", timeout_s=2.0, request_id="score-1")
    [request] = Scoring([1, 2], [[3]], terms).requests
    assert (request.cache_salt, request.priority, request.tenant) == ("s", 3, "t")
    assert (request.timeout_s, request.request_id) == (2.0, "score-1-0")


@pytest.mark.parametrize(("prompt", "options"), [([], [[1]]), ([1], [[1], []])])
async def test_nothing_cannot_be_scored(prompt: list[int], options: list[list[int]]) -> None:
    with pytest.raises(InvalidRequestError):
        Scoring(prompt, options)


async def test_an_option_that_does_not_fit_ends_the_others(start_engine: StartEngine) -> None:
    engine = await start_engine(num_blocks=8, block_size=16)
    with pytest.raises(PromptTooLongError):
        await score(engine, PROMPT[:20], [[5], [6], [7] * 4000])
    await idle(engine)
