"""``GET /health`` (is the process worth keeping?) and ``GET /ready`` (should it get requests?).

Both read two flags and nothing else, so they answer at once whatever the engine is doing.
"""

from __future__ import annotations

from aiohttp import web

from radixserve.errors import EngineDeadError, ShuttingDownError
from radixserve.server.state import ENGINE


async def get_health(request: web.Request) -> web.Response:
    """Answer 200 unless the engine is dead.

    Raises:
        EngineDeadError: the engine's loop has stopped by a failure.
    """
    if not request.app[ENGINE].is_alive:
        raise EngineDeadError("The engine has stopped.")
    return web.json_response({"status": "ok"})


async def get_ready(request: web.Request) -> web.Response:
    """Answer 200 while new requests are taken.

    Raises:
        EngineDeadError: the engine's loop has stopped by a failure.
        ShuttingDownError: the model is still loading, or the server is about to end.
    """
    engine = request.app[ENGINE]
    if not engine.is_alive:
        raise EngineDeadError("The engine has stopped.")
    if not engine.is_ready:
        raise ShuttingDownError("The server takes no requests now: it is starting or ending.")
    return web.json_response({"status": "ready"})
