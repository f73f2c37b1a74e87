"""The routes below ``/v1/batches``: create, list, describe, cancel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve.server.auth import caller_of
from radixserve.server.generation import read_json
from radixserve.server.handlers.files import desk_of, json_response, owner_of
from radixserve.server.protocol.batches import (
    batch_json,
    new_batch,
    parse_batch,
    parse_batches_query,
)
from radixserve.server.protocol.files import page_json
from radixserve.server.state import ENGINE, HTTP_CONFIG

if TYPE_CHECKING:
    from aiohttp import web

    from radixserve.server.store.batches import StoredBatch


async def post_batches(request: web.Request) -> web.Response:
    """Take in a batch, which begins at once."""
    desk = desk_of(request)
    ignore_unknown = request.app[HTTP_CONFIG].unknown_fields == "ignore"
    fields = parse_batch(await read_json(request), ignore_unknown=ignore_unknown)
    await desk.files.find(fields.input_file_id, owner=owner_of(request), param="input_file_id")
    return _answer(request, await desk.add(new_batch(fields, caller_of(request))))


async def get_batches(request: web.Request) -> web.Response:
    """List the caller's batches; everybody's for an admin."""
    desk = desk_of(request)
    page = await desk.batches.page(parse_batches_query(request.query), owner=owner_of(request))
    model = request.app[ENGINE].info.name
    return json_response(page_json(page, lambda batch: batch_json(desk.current(batch), model)))


async def get_batch(request: web.Request) -> web.Response:
    """Describe a batch."""
    return _answer(request, await _batch(request))


async def post_cancel(request: web.Request) -> web.Response:
    """End a batch with the results that it has."""
    batch = await _batch(request)
    return _answer(request, await desk_of(request).cancel(batch))


async def _batch(request: web.Request) -> StoredBatch:
    batches = desk_of(request).batches
    return await batches.find(request.match_info["batch_id"], owner=owner_of(request))


def _answer(request: web.Request, batch: StoredBatch) -> web.Response:
    current = desk_of(request).current(batch)
    return json_response(batch_json(current, request.app[ENGINE].info.name))
