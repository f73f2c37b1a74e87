"""One batch, from its file to its results.

    validating    the file is read through; faults get their records
    in_progress   requests run, answers to one file, failures to another
    finalizing    both become files of their own

Every state can be taken up again by another process: what has a record is not run again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

from radixserve.batch.dispatch import HttpDispatch, UnreachableError, open_session
from radixserve.batch.order import PrefixOrder
from radixserve.batch.plan import plan_lines
from radixserve.batch.reader import LineFile
from radixserve.batch.record import error_record
from radixserve.batch.report import BatchReport, tokens_in
from radixserve.batch.runner import RunOptions, run_lines
from radixserve.batch.writer import ResultFile, SplitResults
from radixserve.errors import BatchError, ConfigError, RequestError
from radixserve.server.caller import Caller
from radixserve.server.store import batches as states

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from radixserve.batch.line import BatchLine
    from radixserve.batch.record import Reply
    from radixserve.engine.async_engine import AsyncEngine
    from radixserve.server.inner_door import InnerDoor
    from radixserve.server.store.batches import BatchStore, StoredBatch
    from radixserve.server.store.data_folder import DataFolder
    from radixserve.server.store.files import FileStore

PRIORITY = -100
"""Most that a batch's request may have: others go first."""
OPTIONS = RunOptions(retries=5, busy_retries=100_000)
"""A full queue is not the batch's fault."""

logger = logging.getLogger(__name__)


class EngineStoppedError(Exception):
    """The engine takes nothing more: the batch is left as it is, for the next start."""


class BatchJob:
    """Runs one batch.

    Args:
        batch: As it was stored last.
        files: Has the batch's file, gets its results.
        batches: Told of every state.
        folder: Where results grow.
        door: The routes.
        engine: Behind them.
        seats: Bounds the requests of all batches together.
        concurrency: The same number.
    """

    def __init__(
        self,
        batch: StoredBatch,
        *,
        files: FileStore,
        batches: BatchStore,
        folder: DataFolder,
        door: InnerDoor,
        engine: AsyncEngine,
        seats: asyncio.Semaphore,
        concurrency: int,
    ) -> None:
        self.batch = batch
        self.report = BatchReport()
        self._files = files
        self._batches = batches
        self._folder = folder.batch(batch.id)
        self._door = door
        self._engine = engine
        self._seats = seats
        self._concurrency = concurrency
        self._running: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Bring the batch to its end. Cancelled, it leaves the batch as it is, to be run again."""
        try:
            await self._run()
        except EngineStoppedError:
            logger.info("%s waits for the next start", self.batch.id)
        except (BatchError, ConfigError, RequestError) as failed:
            await self._fail("cannot_run", str(failed))
        except Exception:
            logger.exception("%s failed", self.batch.id)
            await self._fail("internal_error", "The server failed; its log has the cause.")

    async def cancel(self) -> None:
        """Ask the batch to end with the results that it has."""
        await self._move(states.CANCELLING)
        if self._running is not None:
            self._running.cancel()

    async def _run(self) -> None:
        source = await self._files.find(self.batch.input_file_id, owner=None)
        with LineFile(self._files.content(source), urls=(self.batch.endpoint,)) as lines:
            results = await asyncio.to_thread(self._open_results)
            with closing(results):
                await self._run_lines(lines, results)
                await asyncio.to_thread(results.sync)
        if self.batch.is_open:
            await self._finish()

    def _open_results(self) -> SplitResults:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        ok = ResultFile(self._output)
        try:
            return SplitResults(ok, ResultFile(self._errors))
        except BaseException:
            ok.close()
            raise

    @property
    def _output(self) -> Path:
        return self._folder / "output.jsonl"

    @property
    def _errors(self) -> Path:
        return self._folder / "errors.jsonl"

    async def _run_lines(self, lines: LineFile, results: SplitResults) -> None:
        """Give every line a record, unless the batch is cancelled or the engine stops."""
        if self.batch.status == states.FINALIZING and not self._output.exists():
            return
        with closing(PrefixOrder(lines)) as order:
            await asyncio.to_thread(plan_lines, lines, order, results, self.report)
            if self.report.num_lines == 0:
                await self._fail("empty_file", "The file has no requests.")
                return
            if self.batch.status == states.VALIDATING:
                await self._move(states.IN_PROGRESS)
            if self.batch.status != states.CANCELLING:
                await self._run_until_end(iter(order), results)

    async def _run_until_end(self, lines: Iterator[BatchLine], results: SplitResults) -> None:
        self._running = asyncio.create_task(self._send_all(lines, results))
        left_s = self.batch.expires_at - time.time()
        try:
            done, _ = await asyncio.wait({self._running}, timeout=max(left_s, 0.0))
        finally:
            self._running.cancel()
            await asyncio.wait({self._running})
        if not done and not self._is_cancelling:
            await asyncio.to_thread(self._expire, results)
        elif not self._running.cancelled():
            self._running.result()
        elif not self._is_cancelling:
            raise asyncio.CancelledError

    async def _send_all(self, lines: Iterator[BatchLine], results: SplitResults) -> None:
        caller = Caller(self.batch.owner, cache_owner=self.batch.cache_owner)
        with self._door.opened_for(caller) as headers:
            async with open_session(self._door.url, headers=headers) as session:
                http = HttpDispatch(session, most={"priority": PRIORITY})
                dispatch = _SeatedDispatch(http, self._seats, self._engine)
                options = RunOptions(
                    concurrency=self._concurrency,
                    retries=OPTIONS.retries,
                    busy_retries=OPTIONS.busy_retries,
                )
                await run_lines(lines, dispatch, results, self.report, options)

    def _expire(self, results: SplitResults) -> None:
        """Give the lines that are left a record that says so."""
        message = f"its batch did not end within {self.batch.completion_window}"
        with LineFile(self._input_path, urls=(self.batch.endpoint,)) as lines:
            for found in lines.scan():
                if results.find(found.parsed.key) is None:
                    record = error_record(found.parsed, "batch_expired", message)
                    results.append(record)
                    self.report.add(record)
        self._is_expired = True
