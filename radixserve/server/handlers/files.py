"""The routes below ``/v1/files``: upload, list, describe, read, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
from aiohttp import web

from radixserve.server.auth import caller_of
from radixserve.server.errors import JSON_TYPE
from radixserve.server.protocol.files import (
    deleted_json,
    file_json,
    page_json,
    parse_files_query,
    storage_off,
)
from radixserve.server.state import BATCH_DESK
from radixserve.server.upload_form import receive_form

if TYPE_CHECKING:
    from typing import Any

    from radixserve.server.batch_desk import BatchDesk
    from radixserve.server.store.files import StoredFile

LINES_TYPE = "application/jsonl"


async def post_files(request: web.Request) -> web.Response:
    """Keep a file."""
    desk = desk_of(request)
    file = await receive_form(request, desk.files, owner=caller_of(request).name)
    return json_response(file_json(file))


async def get_files(request: web.Request) -> web.Response:
    """List the caller's files; everybody's for an admin."""
    query = parse_files_query(request.query)
    page = await desk_of(request).files.page(query, owner=owner_of(request))
    return json_response(page_json(page, file_json))


async def get_file(request: web.Request) -> web.Response:
    """Describe a file."""
    return json_response(file_json(await _file(request)))


async def get_file_content(request: web.Request) -> web.StreamResponse:
    """Send a file's content."""
    path = desk_of(request).files.content(await _file(request))
    return web.FileResponse(path, headers={"Content-Type": LINES_TYPE})


async def delete_file(request: web.Request) -> web.Response:
    """Forget a file."""
    file = await _file(request)
    await desk_of(request).delete(file)
    return json_response(deleted_json(file))


async def _file(request: web.Request) -> StoredFile:
    files = desk_of(request).files
    return await files.find(request.match_info["file_id"], owner=owner_of(request))


def desk_of(request: web.Request) -> BatchDesk:
    """Return the server's files and batches.

    Raises:
        InvalidRequestError: it keeps none.
    """
    desk = request.app.get(BATCH_DESK)
    if desk is None:
        raise storage_off()
    return desk


def owner_of(request: web.Request) -> str | None:
    """Return whose files and batches the caller sees; None: everybody's."""
    caller = caller_of(request)
    return None if caller.is_admin else caller.name


def json_response(body: Any) -> web.Response:
    """Return an answer in JSON."""
    return web.Response(body=orjson.dumps(body), content_type=JSON_TYPE)
