"""The promise of the product: the same tokens, whatever was cached and however it got there."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from radixserve.engine.sync_engine import Engine
from radixserve.types import SamplingParams
from tests.kit.engines import ask, assert_idle, engine_config, num_ties

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from radixserve.engine.sync_engine import Completion
    from tests.engine.conftest import MakeEngine

Tokens: TypeAlias = "tuple[int, ...]"

VOCAB_LEN = 320
OUTPUT_LEN = 16
GREEDY = SamplingParams(temperature=0.0, max_tokens=OUTPUT_LEN)
SAMPLED = replace(GREEDY, temperature=0.8)
NUCLEUS = replace(GREEDY, temperature=0.8, top_p=0.9, top_k=40)
PENALISED = replace(GREEDY, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.3)
KINDS = {"greedy": GREEDY, "sampled": SAMPLED, "nucleus": NUCLEUS, "penalised": PENALISED}


def make_prompts() -> list[list[int]]:
    """Return prompts of 1 to 250 tokens; many share a prefix that ends inside of a block."""
    random = Random(7)

    def some(length: int) -> list[int]:
        return [random.randrange(3, VOCAB_LEN) for _ in range(length)]

    trunk, branch = some(83), some(37)
    prompts = [trunk + some(length) for length in (1, 2, 15, 40)]
    prompts += [trunk + branch + some(length) for length in (1, 16, 30, 130)]
    prompts += [trunk[:length] for length in (1, 16, 17, 48, 83)]
    prompts += [some(length) for length in (2, 31, 64, 100)]
    return [*prompts, branch * 4, [5] * 70]


PROMPTS = make_prompts()


def params_for(kind: SamplingParams, index: int) -> SamplingParams:
    return replace(kind, seed=1000 + index)


def run(
    engine: Engine, kind: SamplingParams, prompts: Sequence[Sequence[int]] = PROMPTS
) -> list[Completion]:
    """Run all prompts as one batch; equal prompts get equal seeds."""
    requests = [ask(prompt, params=params_for(kind, index)) for index, prompt in enumerate(prompts)]
    completions = engine.run(requests)
    assert_idle(engine.core)
    return completions


def run_in_turn(engine: Engine, kind: SamplingParams) -> list[Completion]:
    return [
        engine.run([ask(prompt, params=params_for(kind, index))])[0]
        for index, prompt in enumerate(PROMPTS)
    ]


@pytest.fixture(scope="module")
def expected(make_engine: MakeEngine) -> dict[str, list[Tokens]]:
    """What each prompt gives when it is alone and nothing is ever reused."""
    engine = make_engine(prefix_cache=False)
    found = {
        name: [completion.token_ids for completion in run_in_turn(engine, kind)]
        for name, kind in KINDS.items()
    }
    assert engine.stats().cached_tokens == 0
    assert engine.stats().evictable_blocks == 0
    return found


class Comparison:
    """Compares outputs with the uncached ones and counts the ties among them."""

    def __init__(self, expected: dict[str, list[Tokens]]) -> None:
        self._expected = expected
        self.num_ties = 0

    def check(self, engine: Engine, name: str, completions: Sequence[Completion]) -> None:
        expected = self._expected[name]
        assert len(completions) == len(expected) > 0
        for prompt, tokens, completion in zip(PROMPTS, expected, completions, strict=True):
            if KINDS[name] is GREEDY:
                self.num_ties += num_ties(engine.core, prompt, tokens, completion.token_ids)
            else:
                assert completion.token_ids == tokens
        print(f"{name}: {len(expected)} outputs, {self.num_ties} ties so far")  # noqa: T201


@pytest.fixture
def comparison(expected: dict[str, list[Tokens]]) -> Comparison:
    return Comparison(expected)


each_kind = pytest.mark.parametrize("name", KINDS)


@each_kind
def test_without_a_cache_in_one_batch(
    name: str, make_engine: MakeEngine, comparison: Comparison
) -> None:
    engine = make_engine(prefix_cache=False)

    comparison.check(engine, name, run(engine, KINDS[name]))


@each_kind
def test_cold_then_warm(name: str, make_engine: MakeEngine, comparison: Comparison) -> None:
    engine = make_engine()

    comparison.check(engine, name, run(engine, KINDS[name]))
    warm = run(engine, KINDS[name])

    comparison.check(engine, name, warm)
    # Each prompt is in the tree to its last token, which is always computed.
    assert [c.usage.cached_tokens for c in warm] == [len(prompt) - 1 for prompt in PROMPTS]
    assert engine.stats().evicted_blocks == 0


@each_kind
def test_one_by_one(name: str, make_engine: MakeEngine, comparison: Comparison) -> None:
    engine = make_engine()

    comparison.check(engine, name, run_in_turn(engine, KINDS[name]))

    assert engine.stats().cached_tokens > 0


@each_kind
def test_after_eviction(name: str, make_engine: MakeEngine, comparison: Comparison) -> None:
    engine = make_engine(num_blocks=20)

    for _ in range(2):
        comparison.check(engine, name, run_in_turn(engine, KINDS[name]))

    stats = engine.stats()
    assert stats.evicted_blocks > stats.num_blocks
    assert stats.cached_tokens > 0


@each_kind
def test_after_preemption(name: str, make_engine: MakeEngine, comparison: Comparison) -> None:
    engine = make_engine(num_blocks=70, block_size=4)

    for _ in range(2):
        comparison.check(engine, name, run(engine, KINDS[name]))

    assert engine.stats().preemptions > 0


@each_kind
def test_after_preemption_without_a_cache(
    name: str, make_engine: MakeEngine, comparison: Comparison
) -> None:
    engine = make_engine(num_blocks=70, block_size=4, prefix_cache=False)

    comparison.check(engine, name, run(engine, KINDS[name]))

    assert engine.stats().preemptions > 0


@pytest.mark.parametrize("name", ["greedy", "sampled"])
@pytest.mark.parametrize("chunk_len", [16, 64, None])
@pytest.mark.parametrize("block_size", [1, 16, 64])
def test_with_chunks_and_blocks_of_any_size(
    name: str,
    chunk_len: int | None,
    block_size: int,
    make_engine: MakeEngine,
    comparison: Comparison,
) -> None:
    engine = make_engine(
        num_blocks=4096 // block_size, block_size=block_size, prefill_chunk_len=chunk_len
    )

    for _ in range(2):
        comparison.check(engine, name, run(engine, KINDS[name]))


@pytest.mark.parametrize("policy", ["lpm", "fcfs"])
@pytest.mark.parametrize(("num_seqs", "num_tokens"), [(1, 1), (2, 7), (5, 33)])
def test_with_steps_of_few_reqs_and_tokens(
    policy: str, num_seqs: int, num_tokens: int, make_engine: MakeEngine, comparison: Comparison
) -> None:
    engine = make_engine(
        max_num_seqs=num_seqs, max_num_batched_tokens=num_tokens, schedule_policy=policy
    )

    comparison.check(engine, "sampled", run(engine, SAMPLED))


@pytest.mark.usefixtures("eager_admission")
def test_whatever_the_order_and_the_company(
    make_engine: MakeEngine, expected: dict[str, list[Tokens]]
) -> None:
    engine = make_engine(num_blocks=90, block_size=4)
    order = list(range(len(PROMPTS))) * 3
    Random(3).shuffle(order)
    names = list(KINDS)
    company = [(index, names[(index + place) % len(names)]) for place, index in enumerate(order)]

    completions = engine.run(
        [ask(PROMPTS[index], params=params_for(KINDS[name], index)) for index, name in company]
    )

    assert [c.token_ids for c in completions] == [expected[name][index] for index, name in company]
    assert engine.stats().preemptions > 0


def test_salts_share_nothing_and_change_nothing(
    make_engine: MakeEngine, expected: dict[str, list[Tokens]]
) -> None:
    engine = make_engine()
    prompt, params = PROMPTS[3], params_for(SAMPLED, 3)

    usages = []
    for salt in ("", "a", "b", "a"):
        [completion] = engine.run([ask(prompt, params=params, cache_salt=salt)])
        assert completion.token_ids == expected["sampled"][3]
        usages.append(completion.usage.cached_tokens)

    assert usages == [0, 0, 0, len(prompt) - 1]


# -- the real model ----------------------------------------------------------------------------

REAL_SETTINGS: dict[str, dict[str, Any]] = {
    "cold": {},
    "chunks of 16": {"prefill_chunk_len": 16},
    "blocks of 1": {"block_size": 1, "num_blocks": 4096},
    "blocks of 64": {"block_size": 64, "num_blocks": 64},
    "a pool too small for all": {"num_blocks": 12},
}
REAL_TEXTS = (
    "The capital of France is",
    "The capital of France is Paris. The capital of Italy is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "Once upon a time there was a little parrot who lived in a tree. " * 8 + "One day",
    "Once upon a time there was a little parrot who lived in a tree. " * 8 + "Every night",
)


@pytest.fixture(scope="module")
def real_expected(real_folder: Path) -> tuple[list[list[int]], list[Tokens]]:
    engine = Engine(config=engine_config(real_folder, prefix_cache=False, num_threads=2))
    prompts = [engine.tokenizer.encode(text) for text in REAL_TEXTS]
    return prompts, [engine.run([ask(p, params=GREEDY)])[0].token_ids for p in prompts]


@pytest.mark.model
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", REAL_SETTINGS)
def test_with_the_real_model(
    name: str, real_folder: Path, real_expected: tuple[list[list[int]], list[Tokens]]
) -> None:
    prompts, expected = real_expected
    engine = Engine(config=engine_config(real_folder, num_threads=2, **REAL_SETTINGS[name]))

    ties = 0
    for _ in range(2):
        completions = run(engine, GREEDY, prompts)
        for prompt, tokens, completion in zip(prompts, expected, completions, strict=True):
            ties += num_ties(engine.core, prompt, tokens, completion.token_ids)

    print(f"{name}: {2 * len(prompts)} outputs, {ties} ties")  # noqa: T201
    stats = engine.stats()
    assert stats.cached_tokens > 0
    if name == "a pool too small for all":
        assert stats.preemptions > 0
        assert stats.evicted_blocks > 0
