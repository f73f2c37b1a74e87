"""The X-Request-Id header: the caller's own where it is sane, else one of ours."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiohttp import web

HEADER = "X-Request-Id"
_SANE = re.compile(r"[A-Za-z0-9._:\-]{1,128}")


def new_id(prefix: str) -> str:
    """Return a fresh id: the prefix and 32 hexadecimal digits."""
    return f"{prefix}-{uuid.uuid4().hex}"


async def add_request_id(request: web.Request, response: web.StreamResponse) -> None:
    """Name the request in its response's headers, just before they are sent.

    Mutates: the response's headers.
    """
    given = request.headers.get(HEADER, "")
    response.headers[HEADER] = given if _SANE.fullmatch(given) else new_id("req")
