"""``POST /generate/forget``."""

from __future__ import annotations

import orjson
from aiohttp import web

from radixserve.server.auth import caller_of
from radixserve.server.errors import JSON_TYPE
from radixserve.server.generation import read_json
from radixserve.server.protocol.generate import parse_forget
from radixserve.server.state import FORKS, HTTP_CONFIG


async def post_forget(request: web.Request) -> web.Response:
    """Let go of calls that were kept to go on from; names that are unknown are ignored."""
    ignore_unknown = request.app[HTTP_CONFIG].unknown_fields == "ignore"
    body = parse_forget(await read_json(request), ignore_unknown=ignore_unknown)
    count = request.app[FORKS].forget(caller_of(request).name, body.ids, is_end=body.is_end)
    return web.Response(body=orjson.dumps({"forgotten": count}), content_type=JSON_TYPE)
