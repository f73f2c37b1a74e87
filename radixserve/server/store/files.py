"""Uploaded files and results: their names in the database, their contents beside it."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import orjson

from radixserve.errors import RequestTooLargeError, StoredObjectNotFoundError
from radixserve.server.store.page import Page, PageQuery, select_page

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import AsyncIterator
    from pathlib import Path
    from typing import BinaryIO

    from radixserve.server.store.data_folder import DataFolder
    from radixserve.server.store.database import Database

UPLOADED = "batch"
RESULT = "batch_output"
"""Purposes, in OpenAI's words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """One file. `num_bytes` is its size; times in Unix seconds."""

    id: str
    owner: str
    """The name of the key that made it."""
    name: str
    purpose: str
    num_bytes: int
    created_at: int


class FileStore:
    """The files of a data folder.

    Args:
        max_bytes: Of one upload.
    """

    def __init__(self, folder: DataFolder, database: Database, *, max_bytes: int) -> None:
        self._folder = folder
        self._database = database
        self._max_bytes = max_bytes

    def content(self, file: StoredFile) -> Path:
        """Return where a file's content is."""
        return self._folder.content(file.id)

    async def receive(self, chunks: AsyncIterator[bytes], *, owner: str, name: str) -> StoredFile:
        """Keep an upload; one that breaks off leaves nothing.

        Raises:
            RequestTooLargeError: it is larger than files may be.
        """
        file_id = f"file-{uuid.uuid4().hex}"
        path = self._folder.upload(file_id)
        try:
            with await asyncio.to_thread(path.open, "wb") as out:
                num_bytes = await self._write(chunks, out)
                await asyncio.to_thread(_sync, out)
            await asyncio.to_thread(path.replace, self._folder.content(file_id))
        finally:
            await asyncio.to_thread(path.unlink, missing_ok=True)
        return await self._keep(file_id, owner, name, UPLOADED, num_bytes)

    async def adopt(self, path: Path, *, file_id: str, owner: str, name: str) -> str | None:
        """Keep a result that lies elsewhere; an empty one is not kept.

        May be called again after a crash.

        Returns: the file's id, if it is kept.
        """
        content = self._folder.content(file_id)
        num_bytes = await asyncio.to_thread(_size_of_first, path, content)
        if num_bytes == 0:
            return None
        # The name first: contents without one are swept away.
        await self._keep(file_id, owner, name, RESULT, num_bytes)
        await asyncio.to_thread(_move, path, content)
        return file_id

    async def sweep(self) -> None:
        """Delete contents without a name: of uploads that were never finished."""
        rows = await self._database.run(
            lambda connection: connection.execute("SELECT id FROM file").fetchall()
        )
        await asyncio.to_thread(self._folder.keep_only, {row[0] for row in rows})

    async def find(
        self, file_id: str, *, owner: str | None, param: str | None = None
    ) -> StoredFile:
        """Return a file.

        Args:
            owner: Whose it must be; None: anybody's.
            param: The caller's field, for the error's message.
        Raises:
            StoredObjectNotFoundError: there is none.
        """
        file = await self._database.run(lambda connection: _select(connection, file_id))
        if file is None or owner not in (None, file.owner):
            raise StoredObjectNotFoundError(f"There is no file {file_id[:128]!r}.", param=param)
        return file

    async def page(self, query: PageQuery, *, owner: str | None) -> Page[StoredFile]:
        """Return a page of an owner's files; of everybody's if that is None."""
        found, has_more = await self._database.run(
            lambda connection: select_page(connection, "file", owner, query)
        )
        return Page([_parse(fields) for fields in found], has_more)

    async def delete(self, file: StoredFile) -> None:
        """Forget a file and its content."""
        await self._database.run(
            lambda connection: connection.execute("DELETE FROM file WHERE id = ?", (file.id,))
        )
        await asyncio.to_thread(self.content(file).unlink, missing_ok=True)

    async def _write(self, chunks: AsyncIterator[bytes], out: BinaryIO) -> int:
        num_bytes = 0
        async for chunk in chunks:
            num_bytes += len(chunk)
            if num_bytes > self._max_bytes:
                raise RequestTooLargeError(
                    f"The file is over the limit of {self._max_bytes} bytes.", param="file"
                )
            await asyncio.to_thread(out.write, chunk)
        return num_bytes

    async def _keep(
        self, file_id: str, owner: str, name: str, purpose: str, num_bytes: int
    ) -> StoredFile:
        file = StoredFile(
            id=file_id,
            owner=owner,
            name=name,
            purpose=purpose,
            num_bytes=num_bytes,
            created_at=int(time.time()),
        )
        fields = orjson.dumps(asdict(file)).decode()
        await self._database.run(
            lambda connection: connection.execute(
                "INSERT OR IGNORE INTO file (id, owner, fields) VALUES (?, ?, ?)",
                (file_id, owner, fields),
            )
        )
        return file


def _select(connection: sqlite3.Connection, file_id: str) -> StoredFile | None:
    row = connection.execute("SELECT fields FROM file WHERE id = ?", (file_id,)).fetchone()
    return None if row is None else _parse(row[0])


def _parse(fields: str) -> StoredFile:
    return StoredFile(**orjson.loads(fields))


def _size_of_first(*paths: Path) -> int:
    """Return the size of the first file that there is; 0 if there is none."""
    return next((path.stat().st_size for path in paths if path.exists()), 0)


def _move(path: Path, content: Path) -> None:
    if path.exists():
        path.replace(content)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
