"""The runner: bounded, patient where that helps, one record for each request."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve.batch.dispatch import UnreachableError
from radixserve.batch.line import BatchLine
from radixserve.batch.report import BatchReport, tokens_of
from radixserve.batch.runner import RunOptions, run_lines
from radixserve.batch.writer import ResultFile
from radixserve.errors import BatchError
from tests.batch.lines import Echo, ids, ok, records, refused

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from radixserve.batch.record import Reply

AT_ONCE = RunOptions(concurrency=4, backoff_s=0.0)


def lines(count: int) -> list[BatchLine]:
    return [BatchLine(i, f"id-{i}", "/v1/completions", {"prompt": f"{i}"}) for i in range(count)]


@pytest.fixture
def results(tmp_path: Path) -> Iterator[ResultFile]:
    file = ResultFile(tmp_path / "out.jsonl")
    yield file
    file.close()


async def run(
    count: int, dispatch: Echo, results: ResultFile, options: RunOptions = AT_ONCE
) -> BatchReport:
    report = BatchReport(num_lines=count)
    await run_lines(iter(lines(count)), dispatch, results, report, options)
    return report


async def test_every_request_gets_one_record(results: ResultFile) -> None:
    dispatch = Echo(together=4)
    report = await run(100, dispatch, results)
    assert sorted(ids(results.path)) == sorted(f"id-{i}" for i in range(100))
    assert dispatch.sent == [f"id-{i}" for i in range(100)]
    assert dispatch.most_under_way == 4
    assert (report.num_done, report.num_failed, report.num_left) == (100, 0, 0)
    assert (report.tokens.prompt, report.tokens.cached, report.tokens.output) == (1000, 400, 200)
    assert report.tokens.hit_rate == 0.4


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_what_may_get_better_is_tried_again(results: ResultFile, status: int) -> None:
    dispatch = Echo(lambda line, attempt: refused(status) if attempt < 3 else ok(line))
    report = await run(5, dispatch, results)
    assert (report.num_done, report.num_retries) == (5, 10)


@pytest.mark.parametrize("status", [400, 401, 404, 413])
async def test_what_stays_wrong_is_not_tried_again(results: ResultFile, status: int) -> None:
    dispatch = Echo(lambda line, attempt: refused(status))
    report = await run(5, dispatch, results)
    assert (len(dispatch.sent), report.num_failed, report.failures) == (5, 5, {"some_code": 5})
    [record, *_] = records(results.path)
    assert record["response"]["status_code"] == status
    assert record["error"] is None


async def test_patience_ends(results: ResultFile) -> None:
    def answer(line: BatchLine, attempt: int) -> Reply | UnreachableError:
        return UnreachableError("reset") if line.number == 0 else refused(503)

    options = RunOptions(concurrency=2, backoff_s=0.0, retries=3)
    dispatch = Echo(answer)
    report = await run(2, dispatch, results, options)
    assert len(dispatch.sent) == 8
    assert report.failures == {"connection_error": 1, "some_code": 1}
    lost = next(each for each in records(results.path) if each["custom_id"] == "id-0")
    assert lost["response"] is None
    assert lost["error"]["code"] == "connection_error"
    assert "reset" in lost["error"]["message"]


async def test_a_busy_server_may_be_waited_for_longer(results: ResultFile) -> None:
    dispatch = Echo(lambda line, attempt: refused(429) if attempt < 20 else ok(line))
    options = RunOptions(concurrency=2, backoff_s=0.0, retries=1, busy_retries=50)
    assert (await run(3, dispatch, results, options)).num_done == 3


async def test_a_run_gives_up_after_too_many_failures(results: ResultFile) -> None:
    dispatch = Echo(lambda line, attempt: refused(400))
    options = RunOptions(concurrency=2, backoff_s=0.0, max_failures=5)
    report = await run(100, dispatch, results, options)
    assert report.is_given_up
    assert 6 <= report.num_failed <= 7
    assert report.num_left == 100 - report.num_failed == 100 - len(records(results.path))


async def test_a_cancelled_run_leaves_whole_records_and_nothing_under_way(
    results: ResultFile,
) -> None:
    is_under_way = asyncio.Event()

    def answer(line: BatchLine, _: int) -> Reply:
        if line.number == 50:
            is_under_way.set()
        return ok(line)

    dispatch = Echo(answer)
    task = asyncio.create_task(run(10_000, dispatch, results))
    await is_under_way.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert dispatch.num_under_way == 0
    results.close()
    found = ids(results.path)
    assert len(found) == len(set(found)) < 10_000


async def test_a_record_that_cannot_be_written_ends_the_run(results: ResultFile) -> None:
    class Full(ResultFile):
        def append(self, record: dict[str, object]) -> None:
            raise BatchError("cannot write: No space left on device")

    full = Full(results.path.with_name("full.jsonl"))
    dispatch = Echo()
    with pytest.raises(BatchError, match="No space left"):
        await run(100, dispatch, full)
    full.close()
    assert len(dispatch.sent) < 20


@given(attempts=st.integers(1, 50), asked=st.none() | st.floats(0, 60), base=st.floats(0, 5))
def test_pauses_are_bounded_and_never_shorter_than_asked(
    attempts: int, asked: float | None, base: float
) -> None:
    options = RunOptions(backoff_s=base, max_backoff_s=30.0)
    pause = options.pause_s(attempts, asked)
    assert (asked or 0.0) <= pause <= max(30.0, asked or 0.0)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 2,
                "prompt_tokens_details": {"cached_tokens": 4},
            },
            (9, 4, 2),
        ),
        ({"prompt_tokens": 9, "completion_tokens": 2}, (9, 0, 2)),
        (
            {
                "input_tokens": 9,
                "output_tokens": 2,
                "input_tokens_details": {"cached_tokens": 4},
            },
            (9, 4, 2),
        ),
        (
            {
                "input_tokens": 3,
                "output_tokens": 2,
                "cache_read_input_tokens": 4,
                "cache_creation_input_tokens": 2,
            },
            (9, 4, 2),
        ),
        (None, (0, 0, 0)),
        ({"prompt_tokens": None}, (0, 0, 0)),
    ],
)
def test_tokens_are_counted_in_the_words_of_every_route(
    usage: object, expected: tuple[int, int, int]
) -> None:
    found = tokens_of({"usage": usage})
    assert (found.prompt, found.cached, found.output) == expected


def test_the_summary_adds_up() -> None:
    report = BatchReport(num_lines=9)
    report.know(is_good=True)
    report.know(is_good=False)
    text = report.summary(1.0)
    assert text == "9 lines: 1 done, 1 failed, 7 left (2 by an earlier run)"
