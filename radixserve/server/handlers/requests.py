"""``GET /requests``: every live request, how far it has come, and what it waits for. For admins."""

from __future__ import annotations

import orjson
from aiohttp import web

from radixserve.server.auth import require_admin
from radixserve.server.errors import JSON_TYPE
from radixserve.server.protocol.cache import RequestsQuery, parse_query
from radixserve.server.protocol.cache_answers import request_json
from radixserve.server.state import ENGINE


async def get_requests(request: web.Request) -> web.Response:
    """List the running requests, then the waiting ones in the order they came."""
    require_admin(request)
    engine = request.app[ENGINE]
    query = parse_query(request.query, RequestsQuery)
    stats = engine.stats()
    views = engine.cache.requests(limit=query.limit)
    listed = {
        "object": "list",
        "num_running": stats.num_running,
        "num_waiting": stats.num_waiting,
        "data": [request_json(view, engine.cache.age_s(view.req_id)) for view in views],
    }
    return web.Response(body=orjson.dumps(listed), content_type=JSON_TYPE)
