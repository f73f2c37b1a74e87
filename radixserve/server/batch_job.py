"""One batch, from its file to its results.

    validating    the file is read through; faults get their records
    in_progress   requests run, answers to one file, failures to another
    finalizing    both become files of their own

Every state can be taken up again by another process: what has a record is not run again.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from radixserve.batch.dispatch import HttpDispatch, open_session
from radixserve.batch.line import BatchLine
from radixserve.batch.order import PrefixOrder
from radixserve.batch.plan import plan_lines
from radixserve.batch.reader import LineFile
from radixserve.batch.record import error_record
from radixserve.batch.report import BatchReport
from radixserve.batch.runner import RunOptions, run_lines
from radixserve.batch.writer import ResultFile, SplitResults, tokens_in
from radixserve.errors import BatchError, ConfigError, RequestError
from radixserve.server.caller import Caller
from radixserve.server.store import batches as states

if TYPE_CHECKING:
    from radixserve.batch.dispatch import Dispatch
    from radixserve.batch.record import Reply
    from radixserve.engine.async_engine import AsyncEngine
    from radixserve.server.inner_door import InnerDoor
    from radixserve.server.store.batches import BatchStore, StoredBatch
    from radixserve.server.store.data_folder import DataFolder
    from radixserve.server.store.files import FileStore

PRIORITY = -100
"""Most that a batch's request may have: others go first."""
BUSY_RETRIES = 100_000
"""A full queue is not the batch's fault."""
OUTPUT, ERRORS = "output.jsonl", "errors.jsonl"
UNAVAILABLE = 503
_INTERNAL_MESSAGE = "The server failed; its log has the cause."

logger = logging.getLogger(__name__)


class EngineStoppedError(Exception):
    """The engine takes nothing more: the batch is left as it is, for the next start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workroom:
    """What all batches of a server work with.

    Attributes:
        files: Have the batches' files, get their results.
        batches: Told of every state.
        folder: Where results grow.
        door: The routes.
        engine: Behind them.
        seats: Bounds the requests of all batches together.
        concurrency: The same number.
    """

    files: FileStore
    batches: BatchStore
    folder: DataFolder
    door: InnerDoor
    engine: AsyncEngine
    seats: asyncio.Semaphore
    concurrency: int


class _FailedError(Exception):
    """The batch as a whole cannot be run: a code, and a sentence."""


class BatchJob:
    """Runs one batch.

    Args:
        batch: As it was stored last.
        room: What it works with.
    """

    def __init__(self, batch: StoredBatch, room: Workroom) -> None:
        self.batch = batch
        self.report = BatchReport()
        self._files = room.files
        self._batches = room.batches
        self._folder = room.folder.batch(batch.id)
        self._door = room.door
        self._engine = room.engine
        self._seats = room.seats
        self._concurrency = room.concurrency
        self._sending: asyncio.Task[None] | None = None

    @property
    def snapshot(self) -> StoredBatch:
        """The batch as it is now, with the lines counted so far."""
        if not self.report.num_lines:
            return self.batch
        return replace(
            self.batch,
            num_lines=self.report.num_lines,
            num_done=self.report.num_done,
            num_failed=self.report.num_failed,
        )

    async def run(self) -> None:
        """Bring the batch to its end. Cancelled, it leaves the batch as it is, to be run again."""
        try:
            if self.batch.ending is None:
                await self._end_as(await self._work())
        except EngineStoppedError:
            logger.info("%s goes on when the server does", self.batch.id)
            return
        except _FailedError as failed:
            await self._end_as(states.FAILED, failed.args)
        except (BatchError, ConfigError, RequestError) as failed:
            await self._end_as(states.FAILED, ("cannot_run", str(failed)))
        except Exception:
            logger.exception("%s failed", self.batch.id)
            await self._end_as(states.FAILED, ("internal_error", _INTERNAL_MESSAGE))
        await self._finish()

    async def cancel(self) -> None:
        """Ask the batch to end with the results that it has."""
        await self._move(states.CANCELLING)
        if self._sending is not None:
            self._sending.cancel()

    async def _work(self) -> str:
        """Give lines their records. Returns: the state that the batch is to end in."""
        file = await self._files.find(self.batch.input_file_id, owner=None)
        with (
            LineFile(self._files.content(file), urls=(self.batch.endpoint,)) as lines,
            closing(await asyncio.to_thread(self._open_results)) as results,
            closing(PrefixOrder(lines)) as order,
        ):
            await asyncio.to_thread(plan_lines, lines, order, results, self.report)
            if self.report.num_lines == 0:
                raise _FailedError("empty_file", "The file has no requests.")
            if self.batch.status == states.VALIDATING:
                await self._move(states.IN_PROGRESS)
            ending = await self._send_until_end(order, results)
            if ending == states.EXPIRED:
                await asyncio.to_thread(self._expire, lines, results)
            await asyncio.to_thread(results.sync)
        return ending

    def _open_results(self) -> SplitResults:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        ok = ResultFile(self._folder / OUTPUT)
        try:
            return SplitResults(ok, ResultFile(self._folder / ERRORS))
        except BaseException:
            ok.close()
            raise

    async def _send_until_end(self, order: PrefixOrder, results: SplitResults) -> str:
        """Run what is left, until its end, the batch's, or somebody cancels it."""
        if self.batch.status == states.CANCELLING:
            return states.CANCELLED
        this = asyncio.current_task()
        assert this is not None
        self._sending = asyncio.create_task(self._send(order, results))
        try:
            async with asyncio.timeout(max(0.0, self.batch.expires_at - time.time())):
                await self._sending
        except TimeoutError:
            return states.EXPIRED
        except asyncio.CancelledError:
            if this.cancelling():  # the server stops; the batch is left as it is
                raise
            return states.CANCELLED
        return states.COMPLETED

    async def _send(self, order: PrefixOrder, results: SplitResults) -> None:
        caller = Caller(self.batch.owner, cache_owner=self.batch.cache_owner)
        options = RunOptions(concurrency=self._concurrency, busy_retries=BUSY_RETRIES)
        with self._door.opened_for(caller) as headers:
            async with open_session(self._door.url, headers=headers) as session:
                http = HttpDispatch(session, most={"priority": PRIORITY})
                dispatch = SeatedDispatch(http, self._seats, self._engine)
                await run_lines(iter(order), dispatch, results, self.report, options)

    def _expire(self, lines: LineFile, results: SplitResults) -> None:
        """Give the requests that are left a record that says so."""
        message = f"the batch did not end within {self.batch.completion_window}"
        for found in lines.scan():
            line = found.parsed
            if isinstance(line, BatchLine) and results.find(line.key) is None:
                record = error_record(line, "batch_expired", message)
                results.append(record)
                self.report.add(record)

    async def _end_as(self, ending: str, error: tuple[str, ...] = ()) -> None:
        """Take down how the batch ends, before its results are moved."""
        tokens = await asyncio.to_thread(tokens_in, self._folder / OUTPUT)
        errors = [{"code": error[0], "message": error[1]}] if error else []
        status = self.batch.status if ending == states.CANCELLED else states.FINALIZING
        self.batch = replace(
            self.snapshot,
            ending=ending,
            errors=[{**each, "line": None, "param": None} for each in errors],
            prompt_tokens=tokens.prompt,
            cached_tokens=tokens.cached,
            output_tokens=tokens.output,
        )
        await self._move(status)

    async def _finish(self) -> None:
        """Make files of the results, and close the batch. May be repeated after a crash."""
        assert self.batch.ending is not None
        output = await self._adopt(OUTPUT)
        errors = await self._adopt(ERRORS)
        await self._move(self.batch.ending, output_file_id=output, error_file_id=errors)
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def _adopt(self, name: str) -> str | None:
        """Return the id of the file that some results have become; None where there are none."""
        number = self.batch.id.removeprefix("batch_")
        return await self._files.adopt(
            self._folder / name,
            file_id=f"file-{number}-{name.removesuffix('.jsonl')}",
            owner=self.batch.owner,
            name=f"{self.batch.id}_{name}",
        )

    async def _move(self, status: str, **changes: Any) -> None:
        batch = replace(self.batch, **changes)
        if status != batch.status:
            batch = batch.moved_to(status, int(time.time()))
        self.batch = batch
        await self._batches.save(self.batch)


class SeatedDispatch:
    """Sends requests while there are seats, and while the engine takes any.

    Args:
        dispatch: Sends them.
        seats: Taken by each while it is under way.
        engine: Stops before the routes do.
    """

    def __init__(self, dispatch: Dispatch, seats: asyncio.Semaphore, engine: AsyncEngine) -> None:
        self._dispatch = dispatch
        self._seats = seats
        self._engine = engine

    async def send(self, line: BatchLine) -> Reply:
        """Return the answer, of whatever status.

        Raises:
            UnreachableError: there is none.
            EngineStoppedError: nor will there be one before the server starts again.
        """
        async with self._seats:
            reply = await self._dispatch.send(line)
        if reply.status == UNAVAILABLE and not self._engine.is_ready:
            raise EngineStoppedError
        return reply
