"""Many items: order, failures, checkpoints, recordings, and a thousand programs at once."""

from __future__ import annotations

import asyncio
import json
import threading
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

from radixserve.errors import ConfigError, InvalidRequestError, ReplayMismatchError
from radixserve.frontend import Prompt, program, record, replay
from tests.kit.engines import until

if TYPE_CHECKING:
    from pathlib import Path

    from radixserve.frontend import EmbeddedBackend, Program

WORDS = ("red", "green", "blue", "brown", "grey", "pink", "white", "black")


@pytest.fixture
def shout(backend: EmbeddedBackend) -> Program[Any, str]:
    """A program of two calls that fails on one word."""

    @program(name="shout", backend=backend, max_tokens=5)
    async def shout(p: Prompt, word: str) -> str:
        if word == "bad":
            raise ValueError("a bad word")
        p += f"Say {word}: "
        first = await p.gen("first", temperature=1.0)
        p += " and "
        return str(first) + str(await p.gen("second", temperature=1.0))

    return shout


async def test_results_are_in_the_order_of_the_items(shout: Program[Any, str]) -> None:
    alone = [await shout.run_item(shout.new_run(), i, word) for i, word in enumerate(WORDS)]

    results = await shout.map(WORDS)

    assert results == alone
    assert len(results.report.calls) == 2 * len(WORDS)


async def test_results_do_not_depend_on_who_finishes_first(shout: Program[Any, str]) -> None:
    one_by_one = await shout.map(WORDS, concurrency=1, prefix_order=False)
    together = await shout.map(WORDS, concurrency=8)

    assert together == one_by_one


async def test_iteration_yields_by_place_or_as_they_are_done(shout: Program[Any, str]) -> None:
    by_place = [index async for index, _ in shout.map(WORDS)]
    as_done = [index async for index, _ in shout.map(WORDS, order="done", concurrency=3)]

    assert by_place == list(range(len(WORDS)))
    assert sorted(as_done) == by_place


async def test_a_failure_is_raised_or_returned(shout: Program[Any, str]) -> None:
    items = ["red", "bad", "blue"]
    with pytest.raises(ValueError, match="a bad word"):
        await shout.map(items)

    results: list[Any] = await shout.map(items, on_error="return")

    assert isinstance(results[1], ValueError)
    assert all(isinstance(results[index], str) for index in (0, 2))


async def test_a_run_that_was_broken_off_goes_on_where_it_was(
    shout: Program[Any, str], tmp_path: Path
) -> None:
    file = tmp_path / "results.jsonl"
    expected = await shout.map(WORDS)
    broken = shout.map([*WORDS[:4], "bad"], checkpoint=file, concurrency=1, prefix_order=False)
    with pytest.raises(ValueError, match="a bad word"):
        await broken
    assert len(file.read_text().splitlines()) == 4
    with file.open("a") as out:
        out.write('{"key": "half a li')

    results = await shout.map(WORDS, checkpoint=file)

    assert results == expected
    assert len(results.report.calls) == 2 * 4
    keys = [json.loads(line)["key"] for line in file.read_text().splitlines()]
    assert len(set(keys)) == len(keys) == len(WORDS)


async def test_a_checkpoint_of_something_else_is_refused(
    shout: Program[Any, str], tmp_path: Path
) -> None:
    file = tmp_path / "results.jsonl"
    file.write_text('{"neither": "key nor value"}\n')
    with pytest.raises(ConfigError, match="line 1"):
        await shout.map(WORDS, checkpoint=file)


async def test_options_that_make_no_sense_are_refused(shout: Program[Any, str]) -> None:
    for fields in ({"concurrency": 0}, {"on_error": "ignore"}, {"paralel": 2}):
        with pytest.raises(InvalidRequestError):
            shout.map(WORDS, **fields)


async def test_a_recorded_run_needs_no_model(shout: Program[Any, str], tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    with record(file):
        expected = await shout("red")
    steps = shout.using().new_run().backend.engine.stats().steps  # type: ignore[attr-defined]

    with replay(file):
        found = await shout("red")

    assert found == expected
    assert shout.new_run().backend.engine.stats().steps == steps  # type: ignore[attr-defined]
    with replay(file), pytest.raises(ReplayMismatchError, match=r"shout\.gen\('first'\)"):
        await shout("blue")
    with replay(file, strict=False):
        assert await shout("red") == expected


async def test_a_thousand_programs_share_one_loop_and_no_thread_each(
    backend: EmbeddedBackend,
) -> None:
    gate = asyncio.Event()
    waiting = 0

    @program(backend=backend, max_tokens=2)
    async def patient(p: Prompt, number: int) -> int:
        nonlocal waiting
        p += f"Number {number}: "
        waiting += 1
        await gate.wait()
        await p.gen("x", temperature=0.0)
        return number

    threads = threading.active_count()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    task = asyncio.ensure_future(_collect(patient, 1000))
    await until(lambda: waiting == 1000)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    gate.set()
    results = await task

    assert results == list(range(1000))
    assert (after - before) / 1000 < 50_000
    assert threading.active_count() <= threads + 2


async def _collect(patient: Program[Any, int], count: int) -> list[int]:
    return await patient.map(range(count), concurrency=count, prefix_order=False)


async def test_a_storm_of_cancellations_leaves_nothing_behind(backend: EmbeddedBackend) -> None:
    @program(backend=backend, max_tokens=300)
    async def long(p: Prompt, number: int) -> str:
        p += f"Number {number}: "
        return str(await p.gen("x", grammar="start: /[a-z ]{250,}/"))

    tasks = [asyncio.ensure_future(long(number)) for number in range(60)]
    for round_ in range(6):
        wanted = 20 * (round_ + 1)
        await until(lambda wanted=wanted: backend.engine.stats().output_tokens > wanted)  # type: ignore[misc]
        for task in tasks[round_::6]:
            task.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)

    assert any(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
    # The fixture proves that no block is held.
