"""``POST /tokenize`` and ``POST /detokenize``, also below ``/v1``, and ``GET /tokenizer``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web

from radixserve.server.errors import JSON_TYPE
from radixserve.server.generation import check_model, limits_of, off_the_loop, read_json
from radixserve.server.protocol.sampling import check_token_ids
from radixserve.server.protocol.tokenize import parse_detokenize, parse_tokenize
from radixserve.server.state import ENGINE, HTTP_CONFIG
from radixserve.text.portable import tokenizer_sheet

if TYPE_CHECKING:
    from radixserve.engine.async_engine import AsyncEngine
    from radixserve.server.protocol.tokenize import TokenizeRequest


async def post_tokenize(request: web.Request) -> web.Response:
    """Say which tokens a text or a conversation has."""
    engine = request.app[ENGINE]
    ignore_unknown = request.app[HTTP_CONFIG].unknown_fields == "ignore"
    fields = parse_tokenize(await read_json(request), ignore_unknown=ignore_unknown)
    check_model(fields.model, engine.info)
    found = await off_the_loop(fields.text_len, lambda: _tokenized(fields, engine))
    return web.Response(body=orjson.dumps(found), content_type=JSON_TYPE)


async def post_detokenize(request: web.Request) -> web.Response:
    """Say which text some tokens have.

    The text goes under both names that clients look for: `prompt` and `text`.
    """
    engine = request.app[ENGINE]
    ignore_unknown = request.app[HTTP_CONFIG].unknown_fields == "ignore"
    fields = parse_detokenize(await read_json(request), ignore_unknown=ignore_unknown)
    check_model(fields.model, engine.info)
    check_token_ids(fields.tokens, limits_of(engine.info), "tokens")
    text = await off_the_loop(
        len(fields.tokens),
        lambda: engine.tokenizer.decode(
            fields.tokens, skip_special_tokens=fields.skip_special_tokens
        ),
    )
    return web.Response(body=orjson.dumps({"prompt": text, "text": text}), content_type=JSON_TYPE)


async def get_tokenizer(request: web.Request) -> web.Response:
    """Give all that a client needs to encode texts and conversations by itself.

    Megabytes, compressed where the client can read that; to be fetched once.
    """
    engine = request.app[ENGINE]
    body = await asyncio.to_thread(_sheet, engine)
    response = web.Response(body=body, content_type=JSON_TYPE)
    response.enable_compression()
    return response


def _sheet(engine: AsyncEngine) -> bytes:
    sheet = tokenizer_sheet(engine.tokenizer, engine.chat_template)
    info = engine.info
    return orjson.dumps({"model": info.name, "max_model_len": info.max_model_len, **sheet})


def _tokenized(fields: TokenizeRequest, engine: AsyncEngine) -> dict[str, Any]:
    ids = _ids_of(fields, engine)
    id_to_token = engine.tokenizer.backend.id_to_token
    return {
        "count": len(ids),
        "max_model_len": engine.info.max_model_len,
        "tokens": ids,
        "token_strs": [id_to_token(i) for i in ids] if fields.return_token_strs else None,
    }


def _ids_of(fields: TokenizeRequest, engine: AsyncEngine) -> list[int]:
    """Return the ids that a request with the same fields would run with.

    Raises:
        InvalidRequestError: there is no chat template, or it refuses these messages.
    """
    if fields.messages is None:
        return engine.tokenizer.encode(
            fields.prompt or "", add_special_tokens=fields.add_special_tokens
        )
    return engine.chat_template.encode(
        [message.for_template() for message in fields.messages],
        add_generation_prompt=fields.opens_turn,
        continue_final_message=fields.continue_final_message,
        tools=fields.tools,
        template_kwargs=fields.chat_template_kwargs,
    )
