"""``GET /version``."""

from __future__ import annotations

import orjson
from aiohttp import web

import radixserve
from radixserve.server.errors import JSON_TYPE


async def get_version(request: web.Request) -> web.Response:
    """Say which radixserve this is."""
    return web.Response(
        body=orjson.dumps({"version": radixserve.__version__}), content_type=JSON_TYPE
    )
