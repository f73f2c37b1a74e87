"""Each example runs, and takes from the cache what the tree of its prompts allows."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from radixserve.engine.async_engine import AsyncEngine
from radixserve.frontend import EmbeddedBackend
from radixserve.frontend.connect import use
from radixserve.models.cache_folder import is_complete
from radixserve.models.default_model import default_model_folder
from tests.kit.engines import assert_idle, engine_config, until
from tests.kit.truth import shared_len

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from radixserve.frontend import Report

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

FOLDER = Path(__file__).parents[2] / "examples"


def load(name: str) -> Any:
    """Return an example as a module."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
async def backend() -> AsyncIterator[EmbeddedBackend]:
    """The real model with an empty cache."""
    folder = default_model_folder()
    if not is_complete(folder):
        pytest.skip(f"the default model's weights are not in {folder}: run 'radixserve pull'")
    engine = AsyncEngine.from_config(engine_config(folder, num_threads=2))
    backend = EmbeddedBackend(engine)
    with use(backend):
        yield backend
    await until(lambda: not engine.core.has_work)
    assert_idle(engine.core)
    await engine.stop()


def common_prefix(report: Report) -> int:
    """Return how many leading tokens all prompts of a report have in common."""
    assert report.encoder is not None
    prompts = []
    for call in report.calls:
        assert call.transcript is not None
        prompts.append(report.encoder.encode(call.transcript))
    return min(shared_len(prompts[0], other) for other in prompts[1:])


def cached(report: Report) -> list[int]:
    """Return the cached tokens of each call, fewest first: whoever leads has none."""
    return sorted(call.usage.cached_tokens for call in report.calls)


async def test_few_shot_computes_the_shots_once(backend: EmbeddedBackend) -> None:
    example = load("few_shot")

    labels = await example.classify.map(example.REVIEWS, progress=False)

    assert set(labels) <= {"positive", "negative"}
    prefix = common_prefix(labels.report)
    assert cached(labels.report) == [0, prefix, prefix, prefix]
    assert prefix > 60


async def test_a_chat_goes_on_from_its_own_tokens(backend: EmbeddedBackend) -> None:
    report = await load("chat").talk()

    for before, after in zip(report.calls, report.calls[1:], strict=False):
        # The token sampled last has no KV yet.
        expected = before.usage.input_tokens + before.usage.output_tokens - 1
        assert after.usage.cached_tokens == expected


async def test_graders_read_the_essay_once(backend: EmbeddedBackend) -> None:
    example = load("judge")
    run = example.judge.new_run()

    grades = await example.judge.run_item(run, 0, example.ESSAY)

    assert set(grades) == set(example.DIMENSIONS)
    assert set(grades.values()) <= {1, 2, 3, 4, 5}
    prefix = common_prefix(run.report)
    assert cached(run.report) == [0, prefix, prefix]
    assert prefix > 60


async def test_invoices_become_records(backend: EmbeddedBackend) -> None:
    example = load("extract")

    invoices = await example.extract.map(example.TEXTS, progress=False)

    assert [invoice.number for invoice in invoices] == [1203, 77]
    assert cached(invoices.report) == [0, common_prefix(invoices.report)]


async def test_thoughts_are_judged_where_they_stand(backend: EmbeddedBackend) -> None:
    example = load("tree_of_thought")
    run = example.tree_of_thought.new_run()

    await example.tree_of_thought.run_item(run, 0, example.PUZZLE)

    calls = 2 * example.WIDTH * (1 + example.KEPT * (example.DEPTH - 1)) + 1
    assert len(run.report.calls) == calls
    assert run.report.hit_rate > 0.75
    again = example.tree_of_thought.new_run()
    await example.tree_of_thought.run_item(again, 0, example.PUZZLE)
    texts = [{call.path: call.text for call in one.report.calls} for one in (run, again)]
    assert texts[0] == texts[1]


async def test_an_agents_step_computes_only_what_is_new(backend: EmbeddedBackend) -> None:
    example = load("react")
    run = example.react.new_run()

    assert await example.react.run_item(run, 0, example.QUESTION)

    assert len(run.report.calls) > 1
    for before, after in zip(run.report.calls, run.report.calls[1:], strict=False):
        # What a grammar forced at the very end was never computed, like the token sampled last.
        most = before.usage.input_tokens + before.usage.output_tokens - 1
        assert most - before.usage.forced_tokens <= after.usage.cached_tokens <= most
