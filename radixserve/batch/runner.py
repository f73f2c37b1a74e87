"""Runs requests, many at a time, and sees that each gets its record.

A worker takes the next line, sends it until there is an answer worth keeping, writes the record,
and goes on. What is read ahead and what is under way is bounded, whatever the file's size.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from radixserve.batch.dispatch import UnreachableError
from radixserve.batch.record import error_record, reply_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from radixserve.batch.dispatch import Dispatch
    from radixserve.batch.line import BatchLine
    from radixserve.batch.record import Record, Reply
    from radixserve.batch.report import BatchReport
    from radixserve.batch.writer import ResultSink

BUSY = 429
READ_AHEAD = 32
"""Lines that are read from the file at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How many at a time, and how patiently.

    Attributes:
        concurrency: Most requests under way.
        retries: How often a request is sent again after a 5xx or a broken connection.
        busy_retries: How often after a 429; None: as `retries`.
        max_failures: With more failures than this the run ends early; None: never.
        backoff_s: Before the first retry, on average; each further one takes twice as long.
        max_backoff_s: But no longer than this.
    """

    concurrency: int = 64
    retries: int = 5
    busy_retries: int | None = None
    max_failures: int | None = None
    backoff_s: float = 0.5
    max_backoff_s: float = 30.0

    def may_retry(self, status: int, attempts: int) -> bool:
        """Whether a request may be sent again.

        Args:
            status: It was answered with; 0: it was not answered.
            attempts: How often it has been sent.
        """
        if status == BUSY and self.busy_retries is not None:
            return attempts <= self.busy_retries
        return (status == 0 or status == BUSY or status >= 500) and attempts <= self.retries

    def pause_s(self, attempts: int, asked_s: float | None) -> float:
        """Return how long to wait before the next attempt: as the server asked, or a random time.

        Args:
            attempts: How often it has been sent.
            asked_s: What the server said.
        """
        longest = min(self.max_backoff_s, self.backoff_s * 2 ** min(attempts, 16))
        return max(asked_s or 0.0, random.uniform(0.0, longest))


async def run_lines(
    lines: Iterator[BatchLine],
    dispatch: Dispatch,
    sink: ResultSink,
    report: BatchReport,
    options: RunOptions,
    *,
    on_record: Callable[[Record], None] | None = None,
) -> None:
    """Run requests in the order in which they come; each gets one record.

    Args:
        lines: Read in a thread, a few ahead.
        on_record: Told of each record that has been written.
    Mutates: `sink` and `report`. When it is cancelled, what is under way gets no record.
    Raises:
        BatchError: the file cannot be read, or a record cannot be written.
    """
    feed = _Feed(lines)

    async def work() -> None:
        while not _is_over(report, options) and (line := await feed.take()) is not None:
            record = await _run(line, dispatch, report, options)
            await asyncio.to_thread(sink.append, record)
            report.add(record)
            if on_record is not None:
                on_record(record)

    workers = [asyncio.create_task(work()) for _ in range(options.concurrency)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    report.is_given_up = _is_over(report, options)


def _is_over(report: BatchReport, options: RunOptions) -> bool:
    return options.max_failures is not None and report.num_failed > options.max_failures


async def _run(
    line: BatchLine, dispatch: Dispatch, report: BatchReport, options: RunOptions
) -> Record:
    """Send a request until there is an answer worth keeping, or no more patience."""
    attempts = 0
    while True:
        attempts += 1
        found = await _attempt(line, dispatch)
        status, asked_s = (
            (0, None) if isinstance(found, str) else (found.status, found.retry_after_s)
        )
        if not options.may_retry(status, attempts):
            break
        report.num_retries += 1
        await asyncio.sleep(options.pause_s(attempts, asked_s))
    if isinstance(found, str):
        return error_record(line, "connection_error", f"after {attempts} attempts: {found}")
    return reply_record(line, found)


async def _attempt(line: BatchLine, dispatch: Dispatch) -> Reply | str:
    """Return the answer, or why there is none."""
    try:
        return await dispatch.send(line)
    except UnreachableError as failed:
        return str(failed)


class _Feed:
    """Hands out lines to many workers, in order; reads them in a thread."""

    def __init__(self, lines: Iterator[BatchLine]) -> None:
        self._lines = lines
        self._ahead: deque[BatchLine] = deque()
        self._lock = asyncio.Lock()

    async def take(self) -> BatchLine | None:
        """Return the next line; None at the end."""
        async with self._lock:
            if not self._ahead:
                self._ahead.extend(await asyncio.to_thread(self._read))
            return self._ahead.popleft() if self._ahead else None

    def _read(self) -> list[BatchLine]:
        return list(islice(self._lines, READ_AHEAD))
