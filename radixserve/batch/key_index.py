"""Which keys have been seen, and where: on disk, so that a million of them take no memory."""

from __future__ import annotations

import sqlite3
import threading
from dataclasses import dataclass

_CACHE_KIB = 8192
"""Pages that SQLite holds in memory."""


@dataclass(frozen=True, slots=True)
class Place:
    """What is known of a key: where its record is, and whether it is a good one."""

    offset: int = 0
    length: int = 0
    is_ok: bool = True


NOWHERE = Place()


class KeyIndex:
    """A set of texts, each with a place. May be used from several threads.

    It lives in a private database that SQLite deletes when it is closed, even by a crash.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_empty = True
        self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        for setting in (f"cache_size=-{_CACHE_KIB}", "journal_mode=OFF", "synchronous=OFF"):
            self._database.execute(f"PRAGMA {setting}")
        self._database.execute(
            "CREATE TABLE key (name TEXT PRIMARY KEY, offset INTEGER, length INTEGER, "
            "is_ok INTEGER) WITHOUT ROWID"
        )

    def __len__(self) -> int:
        with self._lock:
            return int(self._database.execute("SELECT count(*) FROM key").fetchone()[0])

    def add(self, name: str, place: Place = NOWHERE) -> bool:
        """Remember a key; return False, and change nothing, if it is known already."""
        with self._lock:
            self._is_empty = False
            found = self._database.execute(
                "INSERT OR IGNORE INTO key VALUES (?, ?, ?, ?)",
                (name, place.offset, place.length, place.is_ok),
            )
            return found.rowcount == 1

    def find(self, name: str) -> Place | None:
        """Return what is known of a key; None if nothing is."""
        if self._is_empty:
            return None
        with self._lock:
            row = self._database.execute(
                "SELECT offset, length, is_ok FROM key WHERE name = ?", (name,)
            ).fetchone()
        return None if row is None else Place(row[0], row[1], bool(row[2]))

    def close(self) -> None:
        """Give the database up."""
        self._database.close()
