"""A line for each HTTP call, for people or for programs. Names of keys, never keys; no text."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TextIO

import orjson

from radixserve.server.observe import route_of

if TYPE_CHECKING:
    from aiohttp import web

    from radixserve.server.exchange import Exchange

logger = logging.getLogger("radixserve.access")

PROBES = frozenset({"/health", "/ready", "/metrics"})
"""Asked for every few seconds by programs; no line where all is well."""

_DIGITS = 4


class AccessLog:
    """Writes the lines.

    Args:
        style: json: one object a line and nothing else; text: words in a fixed order.
    """

    def __init__(self, style: Literal["json", "text"]) -> None:
        self._is_json = style == "json"

    def ended(self, request: web.Request, exchange: Exchange, *, status: int, e2e_s: float) -> None:
        """Write one line."""
        is_probe = status < 400 and request.path in PROBES
        if is_probe or not logger.isEnabledFor(logging.INFO):
            return
        facts = access_facts(request, exchange, status=status, e2e_s=e2e_s)
        if self._is_json:
            told = {"time": datetime.now(UTC).isoformat(), **facts}
            logger.info("%s", orjson.dumps(told).decode())
            return
        words = (f"{name}={value}" for name, value in facts.items() if value not in (None, "", []))
        logger.info("%s", " ".join(words))


def access_facts(
    request: web.Request, exchange: Exchange, *, status: int, e2e_s: float
) -> dict[str, Any]:
    """Return what is known of a call that is over. Tokens are those of all its sequences."""
    usages = exchange.usages
    ttft_s = exchange.ttft_s
    return {
        "request_id": exchange.request_id,
        "key": exchange.caller.name or None,
        "method": request.method,
        "route": route_of(request),
        "status": status,
        "error": exchange.error_code or None,
        "duration_s": round(e2e_s, _DIGITS),
        "ttft_s": None if ttft_s is None else round(ttft_s, _DIGITS),
        "prompt_tokens": sum(usage.prompt_tokens for usage in usages),
        "cached_tokens": sum(usage.cached_tokens for usage in usages),
        "output_tokens": sum(usage.completion_tokens for usage in usages),
        "finish_reasons": exchange.finish_reasons,
    }


def write_bare_lines(stream: TextIO) -> None:
    """Send the lines to `stream` without the prefix of other log lines, whatever their level is.

    Mutates: the logger of this file.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
