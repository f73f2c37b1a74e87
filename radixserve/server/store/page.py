"""One page of a list, of files or of batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from radixserve.errors import StoredObjectNotFoundError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

ItemT = TypeVar("ItemT")


@dataclass(frozen=True, slots=True, kw_only=True)
class PageQuery:
    """Which page is asked for.

    Attributes:
        after: The id of the last one of the page before.
        limit: Most items.
        order: By age: the youngest first, or the oldest.
        purpose: Only files with this purpose.
    """

    after: str | None = None
    limit: int = 20
    order: Literal["asc", "desc"] = "desc"
    purpose: str | None = None


@dataclass(frozen=True, slots=True)
class Page(Generic[ItemT]):
    """Some items, and whether there are more."""

    items: Sequence[ItemT]
    has_more: bool


def select_page(
    connection: sqlite3.Connection,
    table: Literal["file", "batch"],
    owner: str | None,
    query: PageQuery,
) -> tuple[list[str], bool]:
    """Return the fields of a page's rows, as JSON, and whether there are more.

    Args:
        owner: Whose; None: everybody's.
    Raises:
        StoredObjectNotFoundError: there is no such `after`.
    """
    start = _place_after(connection, table, owner, query.after)
    is_down = query.order == "desc"
    conditions, values = ["1"], list[object]()
    if owner is not None:
        conditions.append("owner = ?")
        values.append(owner)
    if start is not None:
        conditions.append("place < ?" if is_down else "place > ?")
        values.append(start)
    if query.purpose is not None:
        conditions.append("json_extract(fields, '$.purpose') = ?")
        values.append(query.purpose)
    rows = connection.execute(
        f"SELECT fields FROM {table} WHERE {' AND '.join(conditions)} "
        f"ORDER BY place {'DESC' if is_down else 'ASC'} LIMIT ?",
        (*values, query.limit + 1),
    ).fetchall()
    return [row[0] for row in rows[: query.limit]], len(rows) > query.limit


def _place_after(
    connection: sqlite3.Connection, table: str, owner: str | None, after: str | None
) -> int | None:
    if after is None:
        return None
    row = connection.execute(f"SELECT place, owner FROM {table} WHERE id = ?", (after,)).fetchone()
    if row is None or (owner is not None and row[1] != owner):
        raise StoredObjectNotFoundError(f"There is no {table} {after[:128]!r}.", param="after")
    return int(row[0])
