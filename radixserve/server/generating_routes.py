"""The routes that generate, which a batch file may name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve.server.handlers.chat import post_chat
from radixserve.server.handlers.completions import post_completions
from radixserve.server.handlers.messages import post_messages
from radixserve.server.handlers.responses import post_responses

if TYPE_CHECKING:
    from aiohttp.typedefs import Handler

GENERATING_ROUTES: dict[str, Handler] = {
    "/v1/completions": post_completions,
    "/v1/chat/completions": post_chat,
    "/v1/messages": post_messages,
    "/v1/responses": post_responses,
}
"""Path -> what answers a POST to it."""
