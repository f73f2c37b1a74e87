"""``POST /v1/responses``: OpenAI's Responses API, without its memory."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from radixserve.server.conversation import conversation_of, prompt_ids_of
from radixserve.server.event_style import RESPONSES_EVENTS
from radixserve.server.generation import check_model, read_json
from radixserve.server.merge import open_streams
from radixserve.server.protocol.renaming import RESPONSES_NAMES, named_as
from radixserve.server.protocol.responses import parse_responses
from radixserve.server.protocol.responses_chat import chat_of
from radixserve.server.protocol.responses_writer import ResponseWriter, response_head
from radixserve.server.relay import relay_events, relay_whole
from radixserve.server.request_id import new_id
from radixserve.server.state import ENGINE, HTTP_CONFIG

if TYPE_CHECKING:
    from aiohttp import web


async def post_responses(request: web.Request) -> web.StreamResponse:
    """Answer a conversation."""
    engine = request.app[ENGINE]
    ignore_unknown = request.app[HTTP_CONFIG].unknown_fields == "ignore"
    fields = parse_responses(await read_json(request), ignore_unknown=ignore_unknown)
    check_model(fields.model, engine.info)
    response_id = new_id("resp")
    with named_as(RESPONSES_NAMES):
        chat = chat_of(fields)
        conversation = await conversation_of(
            chat,
            await prompt_ids_of(chat, engine.chat_template),
            engine,
            answer_id=response_id,
            param="input",
            asked_tokens=fields.max_output_tokens,
            default_tokens=None,
        )
    head = response_head(
        fields, response_id=response_id, created=int(time.time()), model=engine.info.name
    )
    writer = ResponseWriter(head, conversation.format.reader())
    running = open_streams(engine, conversation.requests)
    if fields.stream:
        return await relay_events(request, running, [writer], RESPONSES_EVENTS)
    return await relay_whole(running, [writer], writer.whole)
