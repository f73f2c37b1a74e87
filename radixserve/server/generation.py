"""From engine requests to an answer: in one piece or as a stream of events."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
from aiohttp import web

from radixserve.engine.request import GenerateRequest
from radixserve.errors import ModelNotFoundError, UnsupportedFeatureError
from radixserve.server.beam_choices import open_beams
from radixserve.server.choice_deltas import open_choices
from radixserve.server.errors import JSON_TYPE
from radixserve.server.protocol.answers import AnswerOptions, Envelope, fingerprint
from radixserve.server.protocol.json_body import parse_json
from radixserve.server.protocol.logprobs import TokenNames
from radixserve.server.protocol.refusal import refusal
from radixserve.server.protocol.sampling import (
    ModelLimits,
    bad_word_ids,
    check_token_ids,
    kept_len,
    of_sibling,
    output_len,
    sampling_params_of,
    with_output_len,
)
from radixserve.server.protocol.token_facts import TokenFactsWriter
from radixserve.server.protocol.usage import UsageTally
from radixserve.server.sse import SSEWriter
from radixserve.server.state import TURNS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from radixserve.engine.async_engine import AsyncEngine
    from radixserve.engine.info import ModelInfo
    from radixserve.engine.request import TextDelta
    from radixserve.server.choice_deltas import ChoiceDeltas
    from radixserve.server.protocol.choices import ChoiceShape, ChoiceWriter
    from radixserve.server.protocol.fields import GenerationFields
    from radixserve.text.tokenizer import Tokenizer
    from radixserve.types import Grammar, SamplingParams

ResultT = TypeVar("ResultT")

INLINE_TEXT_LEN = 2048
"""Characters that are tokenized on the event loop; more go to a thread, so that running streams
do not wait for them."""
INLINE_SCORES = 256
"""Log-probabilities of prompt tokens that are written on the event loop, likewise."""
MAX_SEQUENCES = 1024
"""Most sequences that one call may have generated."""


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
        options=AnswerOptions.of(fields),
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
    tokenizer: Tokenizer | None = None,
    grammar: Grammar | None = None,
) -> list[GenerateRequest]:
    """Return what the engine runs for one call: the sequences of each prompt side by side.

    Args:
        asked_tokens: Output tokens the caller asked for.
        default_tokens: Output tokens when nothing was asked for; None is the rest of the context.
        tokenizer: Spells `bad_words`.
        grammar: What each output must look like.
    Raises:
        InvalidRequestError: a prompt is empty or holds an unknown token, sampling parameters
            contradict each other or the vocabulary, or there are too many sequences.
        PromptTooLongError: a prompt and its output do not fit in the context.
    """
    _check_num_sequences(fields, len(prompts))
    if fields.beam is not None and grammar is not None:
        raise refusal(
            "use_beam_search: not allowed where the output must follow a grammar.",
            "use_beam_search",
        )
    limits = limits_of(info)
    params = sampling_params_of(fields, limits, bad_words=_bad_words(fields, tokenizer))
    params = dataclasses.replace(params, grammar=grammar)
    kept = kept_len(
        fields.truncate_prompt_tokens, asked=asked_tokens, default=default_tokens, limits=limits
    )
    per_prompt = 1 if fields.beam else fields.num_siblings
    requests = []
    for index, prompt in enumerate(prompts):
        ids = prompt.ids[-kept:]
        _check_prompt(ids, prompt.param, limits)
        max_tokens = output_len(
            prompt_len=len(ids),
            asked=asked_tokens,
            default=default_tokens,
            limits=limits,
            param=prompt.param,
        )
        first = _request_of(fields, ids, with_output_len(params, max_tokens))
        requests += [
            dataclasses.replace(
                first,
                params=of_sibling(first.params, place),
                request_id=f"{answer_id}-{index * per_prompt + place}",
            )
            for place in range(per_prompt)
        ]
    return requests


def _request_of(
    fields: GenerationFields, prompt_ids: Sequence[int], params: SamplingParams
) -> GenerateRequest:
    return GenerateRequest(
        prompt_ids=prompt_ids,
        params=params,
        stop=fields.stop_strings,
        include_stop_str_in_output=fields.include_stop_str_in_output,
        ignore_eos=fields.ignore_eos,
        skip_special_tokens=fields.skip_special_tokens,
        cache_salt=fields.cache_salt or "",
        priority=fields.priority,
        hint=fields.radix.release_hint(fields.priority),
        tenant=fields.user or "",
        timeout_s=fields.timeout_s,
    )


def _check_num_sequences(fields: GenerationFields, num_prompts: int) -> None:
    each = fields.beam.width if fields.beam else fields.num_siblings
    if num_prompts * each > MAX_SEQUENCES:
        param = "prompt" if num_prompts > each else "n"
        raise refusal(
            f"{param}: {num_prompts} prompts with {each} sequences each are "
            f"{num_prompts * each}; one call may have {MAX_SEQUENCES}.",
            param,
        )


def _bad_words(
    fields: GenerationFields, tokenizer: Tokenizer | None
) -> tuple[tuple[int, ...], ...]:
    if not fields.bad_words:
        return ()
    if tokenizer is None:
        raise UnsupportedFeatureError(
            "bad_words: this route does not support this parameter.", param="bad_words"
        )
    return bad_word_ids(fields.bad_words, tokenizer)


def _check_prompt(ids: Sequence[int], param: str, limits: ModelLimits) -> None:
    if not ids:
        raise refusal(f"{param}: the prompt is empty; it needs at least one token.", param)
    check_token_ids(ids, limits, param)


async def answer(
    request: web.Request,
    engine: AsyncEngine,
    requests: Sequence[GenerateRequest],
    envelope: Envelope,
    *,
    stream: bool,
) -> web.StreamResponse:
    """Run the requests and send their choices, in one piece or as they come."""
    if stream:
        return await _answer_in_events(request, engine, requests, envelope)
    return await _answer_whole(engine, requests, envelope)


async def _answer_whole(
    engine: AsyncEngine, requests: Sequence[GenerateRequest], envelope: Envelope
) -> web.Response:
    tally = UsageTally(_per_prompt(envelope.options))
    writers = _writers(engine, requests, envelope)
    async with _open(engine, requests, envelope.options, tally) as choices:
        async for index, delta in choices:
            await _push(writers[index], delta)
    body = envelope.whole([writer.whole() for writer in writers], tally.json())
    return web.Response(body=orjson.dumps(body), content_type=JSON_TYPE)


async def _answer_in_events(
    request: web.Request,
    engine: AsyncEngine,
    requests: Sequence[GenerateRequest],
    envelope: Envelope,
) -> web.StreamResponse:
    options = envelope.options
    tally = UsageTally(_per_prompt(options))
    writers = _writers(engine, requests, envelope)
    async with SSEWriter(request) as events:
        async with _open(engine, requests, options, tally) as choices:
            async for index, delta in choices:
                for choice in await _push(writers[index], delta):
                    usage = tally.json() if options.has_running_usage else None
                    await events.send(envelope.chunk(choice, usage))
        if options.has_usage:
            await events.send(envelope.usage_chunk(tally.json()))
    return events.response


def _open(
    engine: AsyncEngine,
    requests: Sequence[GenerateRequest],
    options: AnswerOptions,
    tally: UsageTally,
) -> AbstractAsyncContextManager[ChoiceDeltas]:
    """Return where the choices come from."""
    if options.beam is not None:
        return open_beams(engine, requests, options, tally)
    return open_choices(engine, requests, options, tally)


def _per_prompt(options: AnswerOptions) -> int:
    """Return the sequences of each prompt that are counted."""
    return options.kept if options.beam else options.made


def _writers(
    engine: AsyncEngine, requests: Sequence[GenerateRequest], envelope: Envelope
) -> list[ChoiceWriter]:
    """Return a writer for each choice."""
    options = envelope.options
    per_prompt = 1 if options.beam else options.made
    firsts = requests[::per_prompt]
    writers: list[ChoiceWriter] = [
        envelope.shape.writer(index) for index in range(len(firsts) * options.kept)
    ]
    if not options.has_token_facts:
        return writers
    names = TokenNames(engine.tokenizer, as_ids=options.names_tokens_by_id)
    return [
        TokenFactsWriter(writer, firsts[index // options.kept], options, names)
        for index, writer in enumerate(writers)
    ]


async def _push(writer: ChoiceWriter, delta: TextDelta) -> list[dict[str, Any]]:
    """Return the chunks of a delta; a long prompt's log-probabilities are written in a thread."""
    if len(delta.prompt_logprobs) <= INLINE_SCORES:
        return writer.push(delta)
    return await asyncio.to_thread(writer.push, delta)
