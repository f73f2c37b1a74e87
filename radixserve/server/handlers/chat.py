"""``POST /v1/chat/completions``."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from radixserve.server.generation import (
    Prompt,
    answer,
    check_model,
    envelope_for,
    generate_requests_for,
    off_the_loop,
    read_json,
)
from radixserve.server.protocol.chat import parse_chat
from radixserve.server.protocol.chat_writer import ChatShape
from radixserve.server.protocol.logprobs import TokenNames
from radixserve.server.protocol.tools import answer_format
from radixserve.server.request_id import new_id
from radixserve.server.state import ENGINE, HTTP_CONFIG

if TYPE_CHECKING:
    from aiohttp import web

    from radixserve.engine.async_engine import AsyncEngine
    from radixserve.server.protocol.chat import ChatRequest
    from radixserve.text.answer_reader import AnswerFormat
    from radixserve.text.chat_template import ChatTemplate


async def post_chat(request: web.Request) -> web.StreamResponse:
    """Answer a conversation."""
    engine = request.app[ENGINE]
    ignore_unknown = request.app[HTTP_CONFIG].unknown_fields == "ignore"
    fields = parse_chat(await read_json(request), ignore_unknown=ignore_unknown)
    check_model(fields.model, engine.info)
    answer_id = new_id("chatcmpl")
    ids = await _prompt_ids(fields, engine.chat_template)
    requests = generate_requests_for(
        fields,
        [Prompt(ids, "messages")],
        engine.info,
        answer_id=answer_id,
        asked_tokens=fields.asked_tokens,
        default_tokens=None,
        tokenizer=engine.tokenizer,
    )
    shape = _shape_of(fields, engine, _format_of(fields, ids, engine.chat_template))
    if shape.format.needs_special_tokens:
        requests = [dataclasses.replace(one, skip_special_tokens=False) for one in requests]
    envelope = envelope_for(fields, engine.info, answer_id=answer_id, shape=shape)
    return await answer(request, engine, requests, envelope, stream=fields.stream)


async def _prompt_ids(fields: ChatRequest, template: ChatTemplate) -> list[int]:
    """Return the token ids of the rendered conversation.

    Raises:
        InvalidRequestError: there is no template, or it refuses these messages.
    """
    return await off_the_loop(
        fields.text_len,
        lambda: template.encode(
            fields.template_messages(),
            add_generation_prompt=fields.opens_turn,
            continue_final_message=fields.continue_final_message,
            tools=fields.tool_use.for_template(),
            template_kwargs=fields.chat_template_kwargs,
        ),
    )


def _format_of(fields: ChatRequest, ids: list[int], template: ChatTemplate) -> AnswerFormat:
    """Return what may be in the answer's text."""
    begun_with = fields.messages[-1].text if fields.continue_final_message else ""
    return answer_format(fields.tool_use, template, ids, begun_with=begun_with)


def _shape_of(fields: ChatRequest, engine: AsyncEngine, text_format: AnswerFormat) -> ChatShape:
    return ChatShape(
        names=TokenNames(engine.tokenizer, as_ids=fields.return_tokens_as_token_ids),
        format=text_format,
        tool_use=fields.tool_use,
        num_logprobs=fields.num_logprobs,
    )
