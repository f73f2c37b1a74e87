"""From engine requests to an answer: in one piece or as a stream of events."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
from aiohttp import web

from radixserve.engine.request import GenerateRequest
from radixserve.errors import ModelNotFoundError
from radixserve.server.errors import JSON_TYPE
from radixserve.server.merge import open_streams
from radixserve.server.protocol.answers import Envelope, fingerprint, usage_json
from radixserve.server.protocol.json_body import parse_json
from radixserve.server.protocol.refusal import refusal
from radixserve.server.protocol.sampling import (
    ModelLimits,
    check_token_ids,
    output_len,
    sampling_params_of,
    with_output_len,
)
from radixserve.server.sse import SSEWriter
from radixserve.server.state import TURNS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from radixserve.engine.async_engine import AsyncEngine
    from radixserve.engine.info import ModelInfo
    from radixserve.engine.request import Usage
    from radixserve.server.protocol.choices import ChoiceShape
    from radixserve.server.protocol.fields import GenerationFields

ResultT = TypeVar("ResultT")

INLINE_TEXT_LEN = 2048
"""Characters that are tokenized on the event loop; more go to a thread, so that running streams
do not wait for them."""


async def read_json(request: web.Request) -> Any:
    """Return the JSON value of the body, when it is this request's turn.

    Preparing a request takes the event loop for a moment. A thousand that arrive together would
    take it for a second; instead a few have their turn in each round of the loop, and running
    streams and health checks come in between.

    Raises:
        InvalidRequestError: it is not JSON.
        web.HTTPRequestEntityTooLarge: it is over `HttpConfig.max_body_bytes`.
    Source: ray-project/ray #54070.
    """
    raw = await request.read()
    async with request.app[TURNS]:
        await asyncio.sleep(0)
    return parse_json(raw)


async def off_the_loop(text_len: int, work: Callable[[], ResultT]) -> ResultT:
    """Return `work()`, run in a thread if the text it handles is long."""
    return work() if text_len <= INLINE_TEXT_LEN else await asyncio.to_thread(work)


def limits_of(info: ModelInfo) -> ModelLimits:
    """Return what bounds one sequence: the model's context or the whole KV pool."""
    return ModelLimits(
        context_len=min(info.max_model_len, info.kv_capacity_tokens), vocab_size=info.vocab_size
    )


def check_model(name: str | None, info: ModelInfo) -> None:
    """Accept the served model's name, or none.

    Raises:
        ModelNotFoundError: another model is asked for.
    """
    if name is not None and name != info.name:
        raise ModelNotFoundError(
            f"The model {name[:128]!r} is not served here; this server has {info.name!r}.",
            param="model",
        )


def envelope_for(
    fields: GenerationFields, info: ModelInfo, *, answer_id: str, shape: ChoiceShape
) -> Envelope:
    """Return the envelope of one call's answer, created now."""
    return Envelope(
        answer_id=answer_id,
        created=int(time.time()),
        model=info.name,
        system_fingerprint=fingerprint(info),
        shape=shape,
        has_usage=fields.include_usage,
    )


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a call: its token ids, and the field that holds it."""

    ids: Sequence[int]
    param: str


def generate_requests_for(
    fields: GenerationFields,
    prompts: Sequence[Prompt],
    info: ModelInfo,
    *,
    answer_id: str,
    asked_tokens: int | None,
    default_tokens: int | None,
) -> list[GenerateRequest]:
    """Return what the engine runs for one call.

    Args:
        asked_tokens: Output tokens the caller asked for.
        default_tokens: Output tokens when nothing was asked for; None is the rest of the context.
    Raises:
        InvalidRequestError: a prompt is empty or holds an unknown token, or sampling parameters
            contradict each other or the vocabulary.
        PromptTooLongError: a prompt and its output do not fit in the context.
    """
    limits = limits_of(info)
    params = sampling_params_of(fields, limits)
    requests = []
    for index, prompt in enumerate(prompts):
        _check_prompt(prompt, limits)
        max_tokens = output_len(
            prompt_len=len(prompt.ids),
            asked=asked_tokens,
            default=default_tokens,
            limits=limits,
            param=prompt.param,
        )
        requests.append(
            GenerateRequest(
                prompt_ids=prompt.ids,
                params=with_output_len(params, max_tokens),
                stop=fields.stop_strings,
                include_stop_str_in_output=fields.include_stop_str_in_output,
                ignore_eos=fields.ignore_eos,
                skip_special_tokens=fields.skip_special_tokens,
                cache_salt=fields.cache_salt or "",
                priority=fields.priority,
                hint=fields.radix.release_hint(fields.priority),
                tenant=fields.user or "",
                timeout_s=fields.timeout_s,
                request_id=f"{answer_id}-{index}",
            )
        )
    return requests


def _check_prompt(prompt: Prompt, limits: ModelLimits) -> None:
    if not prompt.ids:
        raise refusal(
            f"{prompt.param}: the prompt is empty; it needs at least one token.", prompt.param
        )
    check_token_ids(prompt.ids, limits, prompt.param)


async def answer(
    request: web.Request,
    engine: AsyncEngine,
    requests: Sequence[GenerateRequest],
    envelope: Envelope,
    *,
    stream: bool,
) -> web.StreamResponse:
    """Run the requests and send their text, in one piece or as it comes."""
    if stream:
        return await _answer_in_events(request, engine, requests, envelope)
    return await _answer_whole(engine, requests, envelope)


async def _answer_whole(
    engine: AsyncEngine, requests: Sequence[GenerateRequest], envelope: Envelope
) -> web.Response:
    writers = [envelope.shape.writer(index) for index in range(len(requests))]
    usages: dict[int, Usage] = {}
    async with open_streams(engine, requests) as deltas:
        async for index, delta in deltas:
            writers[index].push(delta)
            usages[index] = delta.usage
    choices = [writer.whole() for writer in writers]
    body = envelope.whole(choices, usage_json(usages.values()))
    return web.Response(body=orjson.dumps(body), content_type=JSON_TYPE)


async def _answer_in_events(
    request: web.Request,
    engine: AsyncEngine,
    requests: Sequence[GenerateRequest],
    envelope: Envelope,
) -> web.StreamResponse:
    writers = [envelope.shape.writer(index) for index in range(len(requests))]
    usages: dict[int, Usage] = {}
    async with SSEWriter(request) as events:
        async with open_streams(engine, requests) as deltas:
            async for index, delta in deltas:
                for choice in writers[index].push(delta):
                    await events.send(envelope.chunk(choice))
                usages[index] = delta.usage
        if envelope.has_usage:
            await events.send(envelope.usage_chunk(usage_json(usages.values())))
    return events.response
