"""The real model under many times the load that its pool holds, with clients that come and go.

pytest -m slow tests/engine/test_overload.py --timeout=0 -s      about 15 minutes for each mode
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING

import pytest

from radixserve.engine.async_engine import AsyncEngine
from radixserve.types import FinishReason, SamplingParams
from tests.kit.engines import ask, assert_idle, engine_config, num_ties
from tests.kit.visits import Visit, attend_all, check_sometimes, num_outcomes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from radixserve.engine.request import GenerateRequest
    from radixserve.text.tokenizer import Tokenizer

BLOCK_LEN = 16
NUM_CLIENTS = 64
CHECK_EVERY = 20
MODES = ("recompute", "swap", "auto")
ENDED = (FinishReason.STOP, FinishReason.LENGTH)
NAMES = ("Ada", "Bo", "Chloe", "Dmitri", "Emeka", "Fatima", "Goran", "Hana")
THINGS = ("pears", "marbles", "books", "tickets", "stamps", "shells")


def make_question(random: Random) -> str:
    """A sum in words."""
    first, second = random.sample(NAMES, 2)
    thing = random.choice(THINGS)
    a, b = random.randint(2, 99), random.randint(2, 99)
    return f"Question: {first} has {a} {thing}. {second} brings {b} more. How many are there?\n"


def make_questions(
    tokenizer: Tokenizer, random: Random, count: int, *, long_share: float
) -> list[GenerateRequest]:
    """Prompts of 1 to 9 worked examples, of which many begin alike, and outputs of 2 to 140.

    Args:
        long_share: Those with outputs of 90 tokens and more, of all; the rest is mostly short.
    """
    trunks = [
        "".join(f"{make_question(random)}Answer: {random.randint(4, 198)}\n" for _ in range(shots))
        for shots in (1, 1, 2, 2, 3, 3, 4, 5, 6, 8)
    ]
    requests = []
    for index in range(count):
        trunk = random.choice([*trunks, ""])
        prompt = tokenizer.encode(trunk + make_question(random) + "Answer:")
        is_long = random.random() < long_share
        low, high = (90, 140) if is_long else (2, 16) if random.random() < 0.8 else (17, 45)
        params = SamplingParams(
            temperature=0.0 if random.random() < 0.9 else 0.8,
            max_tokens=random.randint(low, high),
            seed=index,
        )
        ignore_eos = is_long or random.random() < 0.5
        requests.append(ask(prompt, params=params, ignore_eos=ignore_eos))
    return requests


def make_visits(questions: Sequence[GenerateRequest], random: Random, count: int) -> list[Visit]:
    """Each asks one of the questions, urgently or not; some leave early, some have a deadline."""
    visits = []
    for _ in range(count):
        question = random.choice(questions)
        request = ask(
            question.prompt_ids,
            params=question.params,
            ignore_eos=question.ignore_eos,
            priority=random.choice((0, 0, 0, 0, 1, 2)),
            timeout_s=random.uniform(0.5, 20.0) if random.random() < 0.1 else None,
        )
        leaves = random.randint(0, 6) if random.random() < 0.12 else None
        visits.append(Visit(request, leaves_after=leaves))
    return visits


async def run_undisturbed(
    folder: Path, questions: Sequence[GenerateRequest]
) -> dict[tuple[int, ...], list[int]]:
    """What each question's tokens are with memory for all, no cache and a few neighbours."""
    config = engine_config(
        folder, num_blocks=1024, prefix_cache=False, max_num_seqs=16, num_threads=2
    )
    engine = AsyncEngine.from_config(config)
    await engine.start()
    visits = [Visit(question, leaves_after=None) for question in questions]
    try:
        await attend_all(engine, visits, Random(0), num_clients=16, victim_share=0)
        assert engine.stats().preemptions == 0
    finally:
        await engine.stop()
    return {key_of(visit.request): visit.tokens for visit in visits}


def key_of(request: GenerateRequest) -> tuple[int, ...]:
    """What makes two requests the same question: a seed belongs to one of them."""
    assert request.params.seed is not None
    return (request.params.seed, *request.prompt_ids)


def compare(
    engine: AsyncEngine, visits: Sequence[Visit], expected: dict[tuple[int, ...], list[int]]
) -> Counter[str]:
    """Every output is, as far as it went, that of the undisturbed run; count how each ended."""
    found: Counter[str] = Counter()
    for visit in visits:
        whole = expected[key_of(visit.request)]
        is_greedy = visit.request.params.temperature == 0
        if is_greedy:
            part = whole[: len(visit.tokens)]
            found["ties"] += num_ties(engine.core, visit.request.prompt_ids, part, visit.tokens)
        elif visit.tokens != whole[: len(visit.tokens)]:
            found["sampled differently"] += 1
        if visit.reasons and visit.reasons[0] in ENDED:
            assert len(visit.reasons) == 1
            assert len(visit.tokens) == len(whole) or not is_greedy
            found["finished"] += 1
        elif visit.expired or visit.reasons == [FinishReason.TIMEOUT]:
            assert visit.request.timeout_s is not None
            found["expired waiting" if visit.expired else "expired running"] += 1
        else:
            assert not visit.reasons
            assert visit.leaves_after is not None
            found["left"] += 1
    return found


async def overload(
    folder: Path,
    mode: str,
    *,
    pool_tokens: int,
    num_requests: int,
    num_questions: int,
    long_share: float,
) -> None:
    """Run everything once and check all that was promised."""
    config = engine_config(
        folder,
        num_blocks=pool_tokens // BLOCK_LEN,
        block_size=BLOCK_LEN,
        num_threads=2,
        preemption_mode=mode,
        max_queue_len=2 * NUM_CLIENTS,
    )
    engine = AsyncEngine.from_config(config)
    random = Random(21)
    questions = make_questions(engine.tokenizer, random, num_questions, long_share=long_share)
    visits = make_visits(questions, random, num_requests)
    expected = await run_undisturbed(folder, questions)
    await engine.start()
    checked = check_sometimes(engine, every=CHECK_EVERY)
    try:
        await attend_all(engine, visits, random, num_clients=NUM_CLIENTS, patience_s=3600)
        assert_idle(engine.core)
        stats = engine.stats()
        counts = compare(engine, visits, expected)
    finally:
        await engine.stop()

    print(f"\n{mode}: {dict(counts)}; {len(checked)} checks\n{stats}")  # noqa: T201
    assert num_outcomes(engine) == num_requests
    assert counts.total() - counts["ties"] - counts["sampled differently"] == num_requests
    assert counts["finished"] > num_requests // 2
    assert counts["sampled differently"] <= num_requests // 200
    assert stats.preemptions > 0
    assert stats.evicted_blocks > 0
    assert stats.free_host_blocks == stats.host_blocks


@pytest.mark.model
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("eager_admission")
async def test_a_small_overload_of_the_real_model_loses_nothing(real_folder: Path) -> None:
    """Half of the outputs are long, so that memory runs out however fast the machine is."""
    await overload(
        real_folder, "auto", pool_tokens=1000, num_requests=40, num_questions=30, long_share=0.5
    )


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("mode", MODES)
async def test_an_overload_of_the_real_model_loses_nothing(real_folder: Path, mode: str) -> None:
    await overload(
        real_folder, mode, pool_tokens=3000, num_requests=2000, num_questions=500, long_share=0.06
    )
