"""What a scrape says after runs whose numbers are known."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from radixserve.errors import BackendError
from tests.kit.engines import ask, assert_idle

if TYPE_CHECKING:
    from radixserve.engine.engine_core import EngineCore
    from radixserve.engine.sync_engine import Engine
    from tests.engine.conftest import MakeEngine, StartEngine

PROMPT = list(range(10, 46))
OUTPUT_LEN = 20


class Scrape:
    """One scrape, parsed from the text that a Prometheus server would get."""

    def __init__(self, core: EngineCore) -> None:
        text = generate_latest(core.metrics.registry).decode()
        self._values: dict[tuple[str, str | None], float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                assert sample.labels["model_name"] == "tiny"
                label = sample.labels.get("finished_reason", sample.labels.get("le"))
                self._values[sample.name, label] = sample.value

    def __call__(self, name: str, label: str | None = None) -> float:
        return self._values[f"radixserve:{name}", label]

    def get(self, name: str, label: str | None = None) -> float:
        return self._values.get((f"radixserve:{name}", label), 0.0)


@pytest.fixture
def engine(make_engine: MakeEngine) -> Engine:
    return make_engine()


def test_before_any_request(engine: Engine) -> None:
    scrape = Scrape(engine.core)

    for name in ("prefix_cache_hits", "prefix_cache_queries", "generation_tokens", "steps"):
        assert scrape(f"{name}_total") == 0
    assert scrape("free_blocks") == scrape("num_blocks") == 256


def test_two_equal_requests_in_turn(engine: Engine) -> None:
    for _ in range(2):
        engine.run([ask(PROMPT, max_tokens=OUTPUT_LEN)])

    scrape = Scrape(engine.core)

    assert scrape("prefix_cache_queries_total") == 2 * len(PROMPT)
    assert scrape("prefix_cache_hits_total") == len(PROMPT) - 1
    assert scrape("generation_tokens_total") == 2 * OUTPUT_LEN
    assert scrape("num_preemptions_total") == 0
    assert scrape("evicted_blocks_total") == 0
    assert scrape("steps_total") == 2 * OUTPUT_LEN
    assert scrape("request_success_total", "length") == 2
    assert scrape("request_prompt_tokens_count") == 2
    assert scrape("request_prompt_tokens_sum") == 2 * len(PROMPT)
    assert scrape("request_generation_tokens_sum") == 2 * OUTPUT_LEN
    assert scrape("request_generation_tokens_bucket", "16.0") == 0
    assert scrape("request_generation_tokens_bucket", "64.0") == 2
    for name in (
        "time_to_first_token_seconds",
        "request_time_per_output_token_seconds",
        "e2e_request_latency_seconds",
    ):
        assert scrape(f"{name}_count") == 2
        assert scrape(f"{name}_sum") > 0
    # All computed tokens but those of the last, partly filled block are cached.
    assert scrape("evictable_blocks") == (len(PROMPT) + OUTPUT_LEN - 1) // 16
    assert scrape("free_blocks") + scrape("evictable_blocks") == scrape("num_blocks")
    assert scrape("kv_cache_usage_perc") == 0


def test_every_end_is_counted_once_under_its_reason(engine: Engine) -> None:
    [full] = engine.run([ask(PROMPT, max_tokens=40)])
    stop = full.text[len(full.text) // 2 :][:2]
    engine.run([ask(PROMPT, max_tokens=40, stop=(stop,))])
    engine.abort(engine.add(ask(PROMPT)))
    engine.step()
    name = engine.add(ask(PROMPT, max_tokens=40))
    engine.step()
    engine.abort(name)
    engine.step()
    execute = engine.core._runner.execute

    def failing(_: object) -> None:
        raise BackendError("once")

    engine.core._runner.execute = failing  # type: ignore[assignment]
    with pytest.raises(BackendError):
        engine.run([ask(PROMPT)])
    engine.core._runner.execute = execute  # type: ignore[method-assign]

    scrape = Scrape(engine.core)

    ends = {r: scrape.get("request_success_total", r) for r in ("stop", "length", "abort", "error")}
    assert ends == {"stop": 1, "length": 1, "abort": 2, "error": 1}
    assert scrape("request_prompt_tokens_count") == 5
    # One of the given up had a token; the other, and the failed one, had none.
    assert scrape("time_to_first_token_seconds_count") == 3
    assert_idle(engine.core)


def test_preemption_counts_neither_hits_nor_tokens_twice(make_engine: MakeEngine) -> None:
    engine = make_engine(num_blocks=40, block_size=4)
    prompts = [[5 + n, *PROMPT[:20]] for n in range(8)]

    completions = engine.run([ask(prompt, max_tokens=40) for prompt in prompts])

    scrape = Scrape(engine.core)
    assert scrape("num_preemptions_total") > 0
    # No prompt shares its first token with another: whatever is found again is a Req's own.
    assert scrape("prefix_cache_hits_total") == 0
    assert all(completion.usage.cached_tokens == 0 for completion in completions)
    assert scrape("prefix_cache_queries_total") == sum(map(len, prompts))
    assert scrape("generation_tokens_total") == 40 * len(prompts)
    assert scrape("request_success_total", "length") == len(prompts)
    assert scrape("time_to_first_token_seconds_count") == len(prompts)
    assert scrape("evicted_blocks_total") > 0


@pytest.mark.usefixtures("eager_admission")
def test_hits_are_what_the_requests_report(make_engine: MakeEngine) -> None:
    engine = make_engine(num_blocks=40, block_size=4)
    prompts = [[*PROMPT[: 8 + n], 100 + n, 7] for n in range(12)] * 2

    completions = engine.run([ask(prompt, max_tokens=30) for prompt in prompts])

    scrape = Scrape(engine.core)
    assert scrape("num_preemptions_total") > 0
    hits = sum(completion.usage.cached_tokens for completion in completions)
    assert scrape("prefix_cache_hits_total") == hits > 0
    assert scrape("prefix_cache_queries_total") == sum(map(len, prompts))


def test_without_a_cache_there_are_queries_and_no_hits(make_engine: MakeEngine) -> None:
    engine = make_engine(prefix_cache=False)
    for _ in range(2):
        engine.run([ask(PROMPT)])

    scrape = Scrape(engine.core)

    assert scrape("prefix_cache_queries_total") == 2 * len(PROMPT)
    assert scrape("prefix_cache_hits_total") == 0
    assert scrape("free_blocks") == scrape("num_blocks")


def test_gauges_while_requests_run_and_wait(make_engine: MakeEngine) -> None:
    engine = make_engine(max_num_seqs=2)
    for _ in range(5):
        engine.add(ask(PROMPT, max_tokens=40))
    for _ in range(3):
        engine.step()

    scrape = Scrape(engine.core)

    assert scrape("num_requests_running") == 2
    assert scrape("num_requests_waiting") == 3
    held = scrape("private_blocks") + scrape("protected_blocks")
    assert scrape("kv_cache_usage_perc") == held / scrape("num_blocks") > 0
    assert scrape("free_blocks") + scrape("evictable_blocks") + held == scrape("num_blocks")


async def test_the_asyncio_engine_counts_the_same(start_engine: StartEngine) -> None:
    engine = await start_engine()

    async def read() -> None:
        async with engine.submit(ask(PROMPT, max_tokens=OUTPUT_LEN)) as stream:
            assert [delta async for delta in stream]

    await asyncio.gather(*(read() for _ in range(3)))

    scrape = Scrape(engine.core)
    assert scrape("prefix_cache_hits_total") == 2 * (len(PROMPT) - 1)
    assert scrape("prefix_cache_queries_total") == 3 * len(PROMPT)
    assert scrape("generation_tokens_total") == 3 * OUTPUT_LEN
    assert scrape("request_success_total", "length") == 3
