"""``GET /openapi.json``."""

from __future__ import annotations

import asyncio
from functools import cache

import orjson
from aiohttp import web

from radixserve.server.errors import JSON_TYPE
from radixserve.server.protocol.openapi import openapi_json


async def get_openapi(request: web.Request) -> web.Response:
    """Describe all routes."""
    return web.Response(body=await asyncio.to_thread(_description), content_type=JSON_TYPE)


@cache
def _description() -> bytes:
    """Made once: it takes long for an event loop."""
    return orjson.dumps(openapi_json())
