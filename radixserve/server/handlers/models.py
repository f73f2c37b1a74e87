"""``GET /v1/models`` and ``GET /v1/models/{model}``."""

from __future__ import annotations

import orjson
from aiohttp import web

from radixserve.server.errors import JSON_TYPE
from radixserve.server.generation import check_model
from radixserve.server.protocol.answers import model_json
from radixserve.server.state import ENGINE


async def get_models(request: web.Request) -> web.Response:
    """List the served model."""
    listed = {"object": "list", "data": [model_json(request.app[ENGINE].info)]}
    return web.Response(body=orjson.dumps(listed), content_type=JSON_TYPE)


async def get_model(request: web.Request) -> web.Response:
    """Describe one model by its name, which may contain slashes."""
    info = request.app[ENGINE].info
    check_model(request.match_info["model"], info)
    return web.Response(body=orjson.dumps(model_json(info)), content_type=JSON_TYPE)
