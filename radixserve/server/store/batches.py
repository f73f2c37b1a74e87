"""Batches and their states.

validating -> in_progress -> finalizing -> completed
    |              |-> cancelling --------> cancelled
    '-> failed     '-> finalizing --------> expired
"""

from __future__ import annotations

import uuid
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import orjson

from radixserve.errors import StoredObjectNotFoundError
from radixserve.server.store.page import Page, PageQuery, select_page

if TYPE_CHECKING:
    import sqlite3

    from radixserve.server.store.database import Database

VALIDATING = "validating"
IN_PROGRESS = "in_progress"
FINALIZING = "finalizing"
CANCELLING = "cancelling"
COMPLETED = "completed"
FAILED = "failed"
EXPIRED = "expired"
CANCELLED = "cancelled"
OPEN = frozenset({VALIDATING, IN_PROGRESS, FINALIZING, CANCELLING})
"""States that something follows after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBatch:
    """One batch. Times in Unix seconds."""

    owner: str
    """The name of the key that made it."""
    cache_owner: str
    """Whose part of the cache its requests use."""
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    id: str = field(default_factory=lambda: f"batch_{uuid.uuid4().hex}")
    status: str = VALIDATING
    ending: str | None = None
    """The state that it is about to end in."""
    times: dict[str, int] = field(default_factory=dict)
    """State -> when it came."""
    metadata: dict[str, str] | None = None
    errors: list[dict[str, Any]] = field(default_factory=list)
    """Why the whole batch failed."""
    output_file_id: str | None = None
    error_file_id: str | None = None
    num_lines: int = 0
    num_done: int = 0
    num_failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    @property
    def is_open(self) -> bool:
        """Whether anything is still to come."""
        return self.status in OPEN

    def moved_to(self, status: str, now: int) -> StoredBatch:
        """Return this batch in another state."""
        return replace(self, status=status, times={**self.times, status: now})


class BatchStore:
    """The batches of a data folder."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def save(self, batch: StoredBatch) -> None:
        """Keep a batch as it is now."""
        fields = orjson.dumps(asdict(batch)).decode()
        await self._database.run(
            lambda connection: connection.execute(
                "INSERT INTO batch (id, owner, is_open, fields) VALUES (?, ?, ?, ?) ON CONFLICT "
                "(id) DO UPDATE SET is_open = excluded.is_open, fields = excluded.fields",
                (batch.id, batch.owner, batch.is_open, fields),
            )
        )

    async def find(self, batch_id: str, *, owner: str | None) -> StoredBatch:
        """Return a batch.

        Args:
            owner: Whose it must be; None: anybody's.
        Raises:
            StoredObjectNotFoundError: there is none.
        """
        batch = await self._database.run(lambda connection: _select(connection, batch_id))
        if batch is None or owner not in (None, batch.owner):
            raise StoredObjectNotFoundError(f"There is no batch {batch_id[:128]!r}.")
        return batch

    async def page(self, query: PageQuery, *, owner: str | None) -> Page[StoredBatch]:
        """Return a page of an owner's batches; of everybody's if that is None."""
        found, has_more = await self._database.run(
            lambda connection: select_page(connection, "batch", owner, query)
        )
        return Page([_parse(fields) for fields in found], has_more)

    async def open_ones(self) -> list[StoredBatch]:
        """Return the batches that have not ended, the oldest first."""
        rows = await self._database.run(
            lambda connection: connection.execute(
                "SELECT fields FROM batch WHERE is_open ORDER BY place"
            ).fetchall()
        )
        return [_parse(row[0]) for row in rows]


def _select(connection: sqlite3.Connection, batch_id: str) -> StoredBatch | None:
    row = connection.execute("SELECT fields FROM batch WHERE id = ?", (batch_id,)).fetchone()
    return None if row is None else _parse(row[0])


def _parse(fields: str) -> StoredBatch:
    return StoredBatch(**orjson.loads(fields))
