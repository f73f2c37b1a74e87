"""Uploaded files in OpenAI's words: the form, the queries, the answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from radixserve.server.protocol.body import RequestBody
from radixserve.server.protocol.cache import parse_query
from radixserve.server.protocol.refusal import refusal
from radixserve.server.store.files import UPLOADED
from radixserve.server.store.page import PageQuery

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from radixserve.server.store.files import StoredFile
    from radixserve.server.store.page import ItemT, Page

MAX_FILES_SHOWN = 10_000
MAX_NAME_LEN = 255
STORAGE_OFF = "storage_off"


class FilesQuery(RequestBody):
    """Which files are listed."""

    after: Annotated[str, Field(max_length=128)] | None = None
    """The id of the last file of the page before."""
    limit: Annotated[int, Field(ge=1, le=MAX_FILES_SHOWN)] = MAX_FILES_SHOWN
    order: Literal["asc", "desc"] = "desc"
    """By age."""
    purpose: Annotated[str, Field(max_length=64)] | None = None


class FileForm(RequestBody):
    """The form that a file comes in: it describes; `upload_form` reads."""

    purpose: Literal["batch"]
    file: Annotated[str, Field(json_schema_extra={"format": "binary"})]
    """JSON Lines of requests."""


def parse_files_query(query: Mapping[str, str]) -> PageQuery:
    """Return which files are asked for.

    Raises:
        InvalidRequestError: names the parameter at fault.
    """
    fields = parse_query(query, FilesQuery)
    return PageQuery(
        after=fields.after, limit=fields.limit, order=fields.order, purpose=fields.purpose
    )


def check_purpose(purpose: str | None) -> None:
    """Accept files of requests, and no others.

    Raises:
        InvalidRequestError: it is for something else, or does not say.
    """
    if purpose != UPLOADED:
        got = "nothing" if purpose is None else repr(purpose[:40])
        raise refusal(f"purpose: must be 'batch'; got {got}.", "purpose")


def storage_off() -> Exception:
    """Return the error of a server that keeps nothing."""
    return refusal(
        "This server keeps no files and no batches: it was started without --data-dir.",
        None,
        STORAGE_OFF,
    )


def file_json(file: StoredFile) -> dict[str, Any]:
    """Return a file as OpenAI's clients read it."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.num_bytes,
        "created_at": file.created_at,
        "expires_at": None,
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
    }


def deleted_json(file: StoredFile) -> dict[str, Any]:
    """Return what is said of a file that is gone."""
    return {"id": file.id, "object": "file", "deleted": True}


def page_json(page: Page[ItemT], item_json: Callable[[ItemT], dict[str, Any]]) -> dict[str, Any]:
    """Return a page of a list."""
    data = [item_json(item) for item in page.items]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": page.has_more,
    }
