"""``POST /v1/messages`` and ``POST /v1/messages/count_tokens``: Anthropic's API."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import orjson
from aiohttp import web

from radixserve.server.conversation import conversation_of, encode_chat, prompt_ids_of
from radixserve.server.errors import JSON_TYPE
from radixserve.server.event_style import ANTHROPIC_EVENTS
from radixserve.server.generation import check_model, limits_of, off_the_loop, read_json
from radixserve.server.merge import open_streams
from radixserve.server.protocol.messages import parse_count, parse_messages
from radixserve.server.protocol.messages_breakpoint import last_breakpoint
from radixserve.server.protocol.messages_chat import chat_of, chat_of_prompt
from radixserve.server.protocol.messages_writer import MessageFacts, MessageWriter
from radixserve.server.protocol.renaming import MESSAGES_NAMES, named_as
from radixserve.server.relay import relay_events, relay_whole
from radixserve.server.request_id import new_id
from radixserve.server.state import ENGINE, HTTP_CONFIG

if TYPE_CHECKING:
    from radixserve.engine.async_engine import AsyncEngine
    from radixserve.server.conversation import Conversation
    from radixserve.server.protocol.messages import MessagesPrompt, MessagesRequest


async def post_messages(request: web.Request) -> web.StreamResponse:
    """Answer a conversation."""
    engine = request.app[ENGINE]
    ignore_unknown = request.app[HTTP_CONFIG].unknown_fields == "ignore"
    fields = parse_messages(await read_json(request), ignore_unknown=ignore_unknown)
    check_model(fields.model, engine.info)
    message_id = new_id("msg")
    with named_as(MESSAGES_NAMES):
        chat = chat_of(fields)
        ids = await prompt_ids_of(chat, engine.chat_template)
        # A default, not a demand: what does not fit in the context is not asked for.
        conversation = await conversation_of(
            chat,
            ids,
            engine,
            answer_id=message_id,
            param="messages",
            asked_tokens=None,
            default_tokens=fields.max_tokens,
        )
    room = limits_of(engine.info).context_len - len(ids)
    facts = MessageFacts(
        message_id=message_id,
        model=engine.info.name,
        is_cut_by_context=fields.max_tokens > room,
    )
    conversation, facts = await _with_breakpoint(fields, conversation, facts, engine)
    writer = MessageWriter(facts, conversation.format.reader())
    running = open_streams(engine, conversation.requests)
    if fields.stream:
        return await relay_events(request, running, [writer], ANTHROPIC_EVENTS)
    return await relay_whole(running, [writer], writer.whole)


async def post_count_tokens(request: web.Request) -> web.Response:
    """Say how many tokens a conversation has."""
    engine = request.app[ENGINE]
    ignore_unknown = request.app[HTTP_CONFIG].unknown_fields == "ignore"
    fields = parse_count(await read_json(request), ignore_unknown=ignore_unknown)
    check_model(fields.model, engine.info)
    ids = await prompt_ids_of(chat_of_prompt(fields), engine.chat_template)
    return web.Response(body=orjson.dumps({"input_tokens": len(ids)}), content_type=JSON_TYPE)


async def _with_breakpoint(
    fields: MessagesRequest, conversation: Conversation, facts: MessageFacts, engine: AsyncEngine
) -> tuple[Conversation, MessageFacts]:
    """Return both with what the last `cache_control` breakpoint means for them."""
    found = last_breakpoint(fields)
    if found is None:
        return conversation, facts

    def encode(prompt: MessagesPrompt) -> list[int]:
        return encode_chat(chat_of_prompt(prompt), engine.chat_template)

    [request] = conversation.requests
    ids = request.prompt_ids
    marked_len = await off_the_loop(fields.text_len, lambda: found.marked_len(ids, encode))
    hint = found.hint(request.hint, marked_len, len(ids))
    return (
        dataclasses.replace(conversation, requests=[dataclasses.replace(request, hint=hint)]),
        dataclasses.replace(facts, marked_len=marked_len, mark=found.mark),
    )
