"""Each example runs, here and over HTTP alike, and takes from the cache what the tree allows."""

from __future__ import annotations

import asyncio
import importlib.util
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from radixserve.engine.async_engine import AsyncEngine
from radixserve.frontend.connect import use
from radixserve.models.cache_folder import is_complete
from radixserve.models.default_model import default_model_folder
from tests.examples.ledger import Ledger
from tests.examples.shuffled import ShuffledBackend
from tests.frontend.served import served
from tests.kit.engines import assert_idle, engine_config, until
from tests.kit.truth import shared_len

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from radixserve.frontend import Backend, Report

pytestmark = [
    pytest.mark.model,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="module"),
]

FOLDER = Path(__file__).parents[2] / "examples"


@cache
def load(name: str) -> Any:
    """Return an example as a module."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Played:
    """What came of an example."""

    result: Any
    report: Report

    @property
    def texts(self) -> dict[str, str]:
        """What each call has produced, by its path."""
        return {call.path: call.text for call in self.report.calls}

    @property
    def cached(self) -> list[int]:
        """The cached tokens of each call, fewest first: whoever leads has none."""
        return sorted(call.usage.cached_tokens for call in self.report.calls)

    @property
    def common_prefix(self) -> int:
        """How many leading tokens all prompts have in common."""
        assert self.report.encoder is not None
        prompts = []
        for call in self.report.calls:
            assert call.transcript is not None
            prompts.append(self.report.encoder.encode(call.transcript))
        return min(shared_len(prompts[0], other) for other in prompts[1:])


async def run_once(program: Any, item: Any) -> Played:
    """Run a program for one item."""
    run = program.new_run()
    return Played(await program.run_item(run, 0, item), run.report)


async def run_all(program: Any, items: Sequence[Any]) -> Played:
    """Run a program for many items, side by side."""
    results = await program.map(items, progress=False)
    return Played(list(results), results.report)


async def run_chat(example: Any) -> Played:
    """Run the one that is a session, and no program."""
    return Played(None, await example.talk())


EXAMPLES: dict[str, Callable[[Any], Awaitable[Played]]] = {
    "few_shot": lambda example: run_all(example.classify, example.REVIEWS),
    "chat": run_chat,
    "judge": lambda example: run_once(example.judge, example.ESSAY),
    "extract": lambda example: run_all(example.extract, example.TEXTS),
    "tree_of_thought": lambda example: run_once(example.tree_of_thought, example.PUZZLE),
    "react": lambda example: run_once(example.react, example.QUESTION),
}


async def play(name: str, backend: Backend) -> Played:
    """Run an example on a backend."""
    with use(backend):
        return await EXAMPLES[name](load(name))


@dataclass(frozen=True)
class Stage:
    """One engine with the real model, reached in three ways that share no KV with each other."""

    engine: AsyncEngine
    ledger: Ledger
    here: Backend
    there: Backend
    elsewhere: Backend
    """With another key."""

    async def clear(self) -> None:
        """Empty the cache, once nobody uses it any more."""
        core = self.engine.core
        await until(lambda: not core.has_work and len(core.scheduler.fork_points) == 0)
        assert_idle(core)
        await self.engine.cache.flush()
        self.ledger.clear()

    async def play(self, name: str, *backends: Backend) -> Sequence[Played]:
        """Run an example on some backends at once.

        The results are the same, and each request takes from the cache all that the tree has, and
        of prompts that are being computed at the same time all but less than a block.
        """
        plays = await asyncio.gather(*(play(name, backend) for backend in backends))
        for played in plays[1:]:
            assert played.result == plays[0].result
            assert played.texts == plays[0].texts
        self.check_cached(plays)
        return plays

    async def play_shuffled(self, name: str) -> Sequence[Played]:
        """Run an example in this process and over HTTP, and elsewhere in other orders.

        Returns: the first two.
        """
        orders = (ShuffledBackend(self.elsewhere, seed) for seed in range(2))
        return (await self.play(name, self.here, self.there, *orders))[:2]

    async def play_late(self, name: str) -> Sequence[Played]:
        """Run one whose calls only ever follow each other, in both ways: each of them is late."""
        late = (ShuffledBackend(self.here, 1), ShuffledBackend(self.there, 2))
        return await self.play(name, *late)

    def check_cached(self, plays: Sequence[Played]) -> None:
        """Hold each request to what the tree has, and the reports to the requests."""
        entries = self.ledger.entries()
        for entry in entries:
            assert entry.allowed <= entry.cached <= entry.most
            assert entry.forgone < self.engine.cache.block_size
        told = Counter(cached for played in plays for cached in played.cached)
        assert not told - Counter(entry.cached for entry in entries)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[AsyncEngine]:
    """The real model."""
    folder = default_model_folder()
    if not is_complete(folder):
        pytest.skip(f"the default model's weights are not in {folder}: run 'radixserve pull'")
    engine = AsyncEngine.from_config(engine_config(folder, num_blocks=1024, num_threads=1))
    await engine.start()
    yield engine
    await engine.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def stage(engine: AsyncEngine) -> AsyncIterator[Stage]:
    """The engine with an empty cache."""
    ledger = Ledger(engine.core)
    async with (
        served(engine, keys=("sk-1", "sk-2")) as server,
        server.reached("embedded") as here,
        server.reached("remote") as there,
        replace(server, token="sk-2").reached("remote") as elsewhere,
    ):
        stage = Stage(engine, ledger, here, there, elsewhere)
        await stage.clear()
        yield stage
        await stage.clear()
    ledger.close()


async def test_few_shot_computes_the_shots_once(stage: Stage) -> None:
    for played in await stage.play_shuffled("few_shot"):
        assert set(played.result) <= {"positive", "negative"}
        prefix = played.common_prefix
        assert played.cached == [0, prefix, prefix, prefix]
        assert prefix > 60


async def test_graders_read_the_essay_once(stage: Stage) -> None:
    for played in await stage.play_shuffled("judge"):
        assert set(played.result) == set(load("judge").DIMENSIONS)
        assert set(played.result.values()) <= {1, 2, 3, 4, 5}
        prefix = played.common_prefix
        assert played.cached == [0, prefix, prefix]
        assert prefix > 60


async def test_invoices_become_records(stage: Stage) -> None:
    for played in await stage.play_shuffled("extract"):
        assert [invoice.number for invoice in played.result] == [1203, 77]
        assert played.cached == [0, played.common_prefix]


async def test_thoughts_are_judged_where_they_stand(stage: Stage) -> None:
    example = load("tree_of_thought")
    orders = (ShuffledBackend(stage.there, 1), ShuffledBackend(stage.elsewhere, 2))
    plays = await stage.play("tree_of_thought", stage.here, *orders)
    num_steps = example.WIDTH * (1 + example.KEPT * (example.DEPTH - 1))
    assert [len(played.report.calls) for played in plays] == [2 * num_steps + 1] * len(plays)
    # All calls but the first round's go on from another, to its last token; of the first round,
    # one computes the puzzle.
    roots = [entry for entry in stage.ledger.entries() if entry.is_root]
    followers = [entry for entry in roots if entry.cached == len(entry.usable)]
    assert (len(roots), len(followers)) == (3 * example.WIDTH, 3 * (example.WIDTH - 1))


async def test_a_chat_and_an_agent_go_on_from_their_own_tokens(stage: Stage) -> None:
    # Their calls only ever follow each other; the two run side by side to save time.
    chats, agents = await asyncio.gather(stage.play_late("chat"), stage.play_late("react"))

    for played in chats:
        for before, after in pairwise(played.report.calls):
            # The token sampled last has no KV yet.
            expected = before.usage.input_tokens + before.usage.output_tokens - 1
            assert after.usage.cached_tokens == expected
    for played in agents:
        assert played.result
        assert len(played.report.calls) > 1
    entries = stage.ledger.entries()
    assert sum(entry.is_root for entry in entries) == 4
    assert all(entry.cached == entry.allowed > 0 for entry in entries if not entry.is_root)


async def test_a_shuffled_order_changes_nothing_in_this_process(stage: Stage) -> None:
    names = ("few_shot", "judge")
    orders = [ShuffledBackend(stage.here, seed) for seed in range(3)]
    backends: list[Backend] = [stage.here, *orders]
    plays = await asyncio.gather(*(play(name, backend) for backend in backends for name in names))
    for place, played in enumerate(plays):
        expected = plays[place % len(names)]
        assert played.result == expected.result
        assert played.texts == expected.texts
    assert len({tuple(order.ended) for order in orders}) == len(orders)
