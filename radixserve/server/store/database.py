"""SQLite in a thread of its own: the event loop never waits for a disk."""

from __future__ import annotations

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from radixserve.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ResultT = TypeVar("ResultT")

VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS file (
    place INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    fields TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS batch (
    place INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    is_open INTEGER NOT NULL,
    fields TEXT NOT NULL
);
"""


class Database:
    """One connection, used by one thread; each piece of work is one transaction.

    Args:
        path: Of the database's file, made if there is none.
    Raises:
        ConfigError: it cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="radixserve-store")
        try:
            self._connection: sqlite3.Connection = self._thread.submit(_connect, path).result()
        except sqlite3.Error as error:
            self._thread.shutdown()
            raise ConfigError(f"data_dir: {path} cannot be used: {error}") from None
        except ConfigError:
            self._thread.shutdown()
            raise

    async def run(self, work: Callable[[sqlite3.Connection], ResultT]) -> ResultT:
        """Return what `work` returns, done in the database's thread; all of it, or none."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._do, work)

    def close(self) -> None:
        """Give the database up. May block for a moment."""
        self._thread.submit(self._connection.close).result()
        self._thread.shutdown()

    def _do(self, work: Callable[[sqlite3.Connection], ResultT]) -> ResultT:
        with self._connection:
            return work(self._connection)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path)
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version not in (0, VERSION):
        connection.close()
        raise ConfigError(f"data_dir: {path} is of a newer radixserve (version {version})")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.executescript(_SCHEMA)
    connection.execute(f"PRAGMA user_version={VERSION}")
    connection.commit()
    return connection
