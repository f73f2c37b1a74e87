"""The X-Request-Id header: the caller's own where it is sane, else one of ours."""

from __future__ import annotations

import re
import uuid

from aiohttp import web

HEADER = "X-Request-Id"
_SANE = re.compile(r"[A-Za-z0-9._:\-]{1,128}")
_ID: web.RequestKey[str] = web.RequestKey("request_id", str)


def new_id(prefix: str) -> str:
    """Return a fresh id: the prefix and 32 hexadecimal digits."""
    return f"{prefix}-{uuid.uuid4().hex}"


def request_id_of(request: web.Request) -> str:
    """Return the id of one HTTP call, always the same."""
    known = request.get(_ID)
    if known is None:
        given = request.headers.get(HEADER, "")
        known = request[_ID] = given if _SANE.fullmatch(given) else new_id("req")
    return known


async def add_request_id(request: web.Request, response: web.StreamResponse) -> None:
    """Name the request in its response's headers, just before they are sent.

    Mutates: the response's headers.
    """
    response.headers[HEADER] = request_id_of(request)
