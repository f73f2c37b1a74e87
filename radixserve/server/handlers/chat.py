"""``POST /v1/chat/completions``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve.server.conversation import conversation_of, prompt_ids_of
from radixserve.server.generation import answer, check_model, envelope_for, read_json
from radixserve.server.protocol.chat import parse_chat
from radixserve.server.protocol.chat_writer import ChatShape
from radixserve.server.protocol.logprobs import TokenNames
from radixserve.server.request_id import new_id
from radixserve.server.state import ENGINE, HTTP_CONFIG

if TYPE_CHECKING:
    from aiohttp import web


async def post_chat(request: web.Request) -> web.StreamResponse:
    """Answer a conversation."""
    engine = request.app[ENGINE]
    ignore_unknown = request.app[HTTP_CONFIG].unknown_fields == "ignore"
    fields = parse_chat(await read_json(request), ignore_unknown=ignore_unknown)
    check_model(fields.model, engine.info)
    answer_id = new_id("chatcmpl")
    ids = await prompt_ids_of(fields, engine.chat_template)
    conversation = await conversation_of(
        fields,
        ids,
        engine,
        answer_id=answer_id,
        param="messages",
        asked_tokens=fields.asked_tokens,
        default_tokens=None,
    )
    shape = ChatShape(
        names=TokenNames(engine.tokenizer, as_ids=fields.return_tokens_as_token_ids),
        format=conversation.format,
        tool_use=fields.tool_use,
        num_logprobs=fields.num_logprobs,
    )
    envelope = envelope_for(fields, engine.info, answer_id=answer_id, shape=shape)
    return await answer(request, engine, conversation.requests, envelope, stream=fields.stream)
