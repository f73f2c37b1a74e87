"""Takes in batches and sees to it that each comes to its end, over as many starts as it takes."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from radixserve.errors import StoredObjectBusyError
from radixserve.server.batch_job import BatchJob, Workroom
from radixserve.server.inner_door import open_inner_door
from radixserve.server.store import batches as states
from radixserve.server.store.batches import BatchStore
from radixserve.server.store.data_folder import DataFolder
from radixserve.server.store.database import Database
from radixserve.server.store.files import FileStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiohttp import web

    from radixserve.config import HttpConfig
    from radixserve.engine.async_engine import AsyncEngine
    from radixserve.server.store.batches import StoredBatch
    from radixserve.server.store.files import StoredFile


class BatchDesk:
    """The files and the batches of a server. Used from the event loop.

    Args:
        engine: Runs the batches' requests.
        config: Names the folder; its `data_dir` is not None.
    """

    files: FileStore
    batches: BatchStore

    def __init__(self, engine: AsyncEngine, config: HttpConfig) -> None:
        self._engine = engine
        self._config = config
        self._jobs: dict[str, BatchJob] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def opened(self, app: web.Application) -> AsyncIterator[None]:
        """Work while the application does; a clean-up context of it.

        Raises:
            ConfigError: the folder cannot be used.
        """
        del app
        async with AsyncExitStack() as stack:
            self._room = await self._furnish(stack)
            self.files, self.batches = self._room.files, self._room.batches
            await self.files.sweep()
            for batch in await self.batches.open_ones():
                self._begin(batch)
            stack.push_async_callback(self._stop)
            yield

    async def add(self, batch: StoredBatch) -> StoredBatch:
        """Take in a new batch and begin with it."""
        await self.batches.save(batch)
        self._begin(batch)
        return batch

    async def cancel(self, batch: StoredBatch) -> StoredBatch:
        """Ask a batch to end with the results that it has. Returns: the batch as it is then.

        Raises:
            StoredObjectBusyError: it has ended, or is about to.
        """
        job = self._jobs.get(batch.id)
        if job is None or job.batch.ending is not None:
            status = batch.status if job is None else job.batch.status
            raise StoredObjectBusyError(f"The batch is {status}: it cannot be cancelled any more.")
        if job.batch.status != states.CANCELLING:
            await job.cancel()
        return job.snapshot

    def current(self, batch: StoredBatch) -> StoredBatch:
        """Return a batch as it is this moment."""
        job = self._jobs.get(batch.id)
        return batch if job is None else job.snapshot

    async def delete(self, file: StoredFile) -> None:
        """Forget a file.

        Raises:
            StoredObjectBusyError: a batch is reading it.
        """
        for job in self._jobs.values():
            is_reading = job.batch.ending is None  # what is left of a batch then are its results
            if is_reading and job.batch.input_file_id == file.id:
                raise StoredObjectBusyError(f"The batch {job.batch.id} is using this file.")
        await self.files.delete(file)

    async def _furnish(self, stack: AsyncExitStack) -> Workroom:
        config = self._config
        assert config.data_dir is not None
        folder = await asyncio.to_thread(DataFolder, Path(config.data_dir))
        stack.callback(folder.close)
        database = await asyncio.to_thread(Database, folder.database)
        stack.push_async_callback(asyncio.to_thread, database.close)
        return Workroom(
            files=FileStore(folder, database, max_bytes=config.max_file_bytes),
            batches=BatchStore(database),
            folder=folder,
            door=await stack.enter_async_context(open_inner_door(self._engine, config)),
            engine=self._engine,
            seats=asyncio.Semaphore(config.batch_concurrency),
            concurrency=config.batch_concurrency,
        )

    def _begin(self, batch: StoredBatch) -> None:
        job = self._jobs[batch.id] = BatchJob(batch, self._room)
        task = asyncio.create_task(job.run(), name=f"radixserve-{batch.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: self._jobs.pop(batch.id, None))

    async def _stop(self) -> None:
        """Leave the batches as they are; the next start goes on with them."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
