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
from radixserve.server.protocol.echo import echo_of
from radixserve.server.protocol.logprobs import TokenNames
from radixserve.server.protocol.structured import grammar_of
from radixserve.server.request_id import new_id
from radixserve.server.state import ENGINE, HTTP_CONFIG

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiohttp import web

    from radixserve.engine.request import GenerateRequest
    from radixserve.server.protocol.completions import CompletionRequest
    from radixserve.server.protocol.echo import Echo
    from radixserve.text.tokenizer import Tokenizer


async def post_completions(request: web.Request) -> web.StreamResponse:
    """Continue one prompt or several."""
    engine = request.app[ENGINE]
    ignore_unknown = request.app[HTTP_CONFIG].unknown_fields == "ignore"
    fields = parse_completion(await read_json(request), ignore_unknown=ignore_unknown)
    check_model(fields.model, engine.info)
    answer_id = new_id("cmpl")
    requests = generate_requests_for(
        fields,
        await _prompts_of(fields, engine.tokenizer),
        engine.info,
        answer_id=answer_id,
        asked_tokens=fields.asked_tokens,
        default_tokens=DEFAULT_MAX_TOKENS,
        tokenizer=engine.tokenizer,
        grammar=await grammar_of(fields, engine),
    )
    shape = await _shape_of(fields, requests, engine.tokenizer)
    envelope = envelope_for(fields, engine.info, answer_id=answer_id, shape=shape)
    return await answer(request, engine, requests, envelope, stream=fields.stream)


async def _shape_of(
    fields: CompletionRequest, requests: Sequence[GenerateRequest], tokenizer: Tokenizer
) -> CompletionShape:
    prompts = [one.prompt_ids for one in requests[:: len(requests) // len(fields.prompts)]]
    num_tokens = sum(map(len, prompts)) if fields.echo else 0
    echoes = await off_the_loop(num_tokens, lambda: _echoes(fields, prompts, tokenizer))
    return CompletionShape(
        tokenizer=tokenizer,
        names=TokenNames(tokenizer, as_ids=fields.return_tokens_as_token_ids),
        num_logprobs=fields.num_logprobs,
        skip_special_tokens=fields.skip_special_tokens,
        echoes=echoes,
        per_prompt=fields.n,
    )


def _echoes(
    fields: CompletionRequest, prompts: Sequence[Sequence[int]], tokenizer: Tokenizer
) -> list[Echo]:
    """Return what the choices of each prompt begin with; a prompt that was cut is what is left."""
    if not fields.echo:
        return []
    is_cut = fields.truncate_prompt_tokens is not None
    return [
        echo_of(
            ids if is_cut else prompt,
            ids,
            tokenizer,
            skip_special_tokens=fields.skip_special_tokens,
            needs_offsets=fields.num_echo_logprobs is not None,
        )
        for prompt, ids in zip(fields.prompts, prompts, strict=True)
    ]


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
