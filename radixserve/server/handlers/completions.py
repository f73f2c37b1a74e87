"""``POST /v1/completions``."""

from __future__ import annotations

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
from radixserve.server.protocol.completion_writer import CompletionShape
from radixserve.server.protocol.completions import DEFAULT_MAX_TOKENS, parse_completion
from radixserve.server.request_id import new_id
from radixserve.server.state import ENGINE, HTTP_CONFIG

if TYPE_CHECKING:
    from aiohttp import web

    from radixserve.server.protocol.completions import CompletionRequest
    from radixserve.text.tokenizer import Tokenizer


async def post_completions(request: web.Request) -> web.StreamResponse:
    """Continue one prompt or several."""
    engine = request.app[ENGINE]
    ignore_unknown = request.app[HTTP_CONFIG].unknown_fields == "ignore"
    fields = parse_completion(await read_json(request), ignore_unknown=ignore_unknown)
    check_model(fields.model, engine.info)
    answer_id = new_id("cmpl")
    envelope = envelope_for(fields, engine.info, answer_id=answer_id, shape=CompletionShape())
    requests = generate_requests_for(
        fields,
        await _prompts_of(fields, engine.tokenizer),
        engine.info,
        answer_id=answer_id,
        asked_tokens=fields.max_tokens,
        default_tokens=DEFAULT_MAX_TOKENS,
    )
    return await answer(request, engine, requests, envelope, stream=fields.stream)


async def _prompts_of(fields: CompletionRequest, tokenizer: Tokenizer) -> list[Prompt]:
    text_len = sum(len(prompt) for prompt in fields.prompts if isinstance(prompt, str))
    return await off_the_loop(text_len, lambda: _encode(fields, tokenizer))


def _encode(fields: CompletionRequest, tokenizer: Tokenizer) -> list[Prompt]:
    return [
        Prompt(
            tokenizer.encode(prompt, add_special_tokens=fields.add_special_tokens)
            if isinstance(prompt, str)
            else prompt,
            fields.prompt_param(index),
        )
        for index, prompt in enumerate(fields.prompts)
    ]
