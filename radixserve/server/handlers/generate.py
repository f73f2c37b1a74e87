"""``POST /generate``: the native way in."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from radixserve.server.auth import caller_of
from radixserve.server.choice_deltas import open_choices
from radixserve.server.event_style import OPENAI_EVENTS
from radixserve.server.generation import (
    Prompt,
    check_model,
    generate_requests_for,
    off_the_loop,
    read_json,
)
from radixserve.server.protocol.answers import AnswerOptions
from radixserve.server.protocol.generate import DEFAULT_NEW_TOKENS, parse_generate
from radixserve.server.protocol.generate_writer import GenerateShape, GenerateWriter
from radixserve.server.protocol.logprobs import TokenNames
from radixserve.server.protocol.refusal import refusal
from radixserve.server.protocol.usage import UsageTally
from radixserve.server.relay import relay_events, relay_whole
from radixserve.server.request_id import new_id
from radixserve.server.state import ENGINE, FORKS, HTTP_CONFIG

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiohttp import web

    from radixserve.engine.async_engine import AsyncEngine
    from radixserve.engine.request import GenerateRequest
    from radixserve.server.forks import Forks
    from radixserve.server.protocol.generate import GenerateCall
    from radixserve.text.tokenizer import Tokenizer
    from radixserve.types import Grammar


@dataclass(frozen=True, slots=True)
class _Parent:
    """What a call goes on from: its name for the engine, and the ids that are taken over."""

    req_id: str
    ids: Sequence[int]


NO_PARENT = _Parent("", ())


async def post_generate(request: web.Request) -> web.StreamResponse:
    """Continue one prompt or several."""
    engine = request.app[ENGINE]
    ignore_unknown = request.app[HTTP_CONFIG].unknown_fields == "ignore"
    call = parse_generate(await read_json(request), ignore_unknown=ignore_unknown)
    check_model(call.body.model, engine.info)
    owner = caller_of(request).name
    requests = await _requests_of(call, engine, _parent_of(call, request.app[FORKS], owner))
    writers = _writers(call, requests, engine.tokenizer)
    options = AnswerOptions.of(call.completion)
    running = open_choices(engine, requests, options, UsageTally(options.made))
    if call.fork.id is not None:
        running = request.app[FORKS].keeping(
            running, requests[0], owner=owner, name=call.fork.id, ttl_s=call.fork.ttl_s
        )
    if call.body.stream:
        return await relay_events(request, running, writers, OPENAI_EVENTS)

    def whole() -> Any:
        answers = [writer.whole() for writer in writers]
        return answers if call.body.is_batch or len(answers) > 1 else answers[0]

    return await relay_whole(running, writers, whole)


def _parent_of(call: GenerateCall, forks: Forks, owner: str) -> _Parent:
    """Return what the call goes on from.

    Raises:
        ForkNotFoundError: it is not kept any more.
        InvalidRequestError: it is not that long.
    """
    if call.fork.parent is None:
        return NO_PARENT
    req_id, ids = forks.find(owner, call.fork.parent)
    if call.fork.parent_len > len(ids):
        raise refusal(
            f"radix.fork.parent_len: the call has {len(ids)} tokens; got {call.fork.parent_len}.",
            "radix.fork.parent_len",
        )
    return _Parent(req_id, ids[: call.fork.parent_len])


async def _requests_of(
    call: GenerateCall, engine: AsyncEngine, parent: _Parent
) -> list[GenerateRequest]:
    """Return what the engine runs, under the names that the caller gave."""
    fields, prompts = call.completion, call.completion.prompts
    text_len = sum(len(prompt) for prompt in prompts if isinstance(prompt, str))
    requests = generate_requests_for(
        fields,
        await off_the_loop(text_len, lambda: _encode(call, engine.tokenizer, parent)),
        engine.info,
        answer_id="",
        asked_tokens=fields.asked_tokens,
        default_tokens=DEFAULT_NEW_TOKENS,
        tokenizer=engine.tokenizer,
        grammar=await _grammar_of(call, engine),
    )
    names = call.names(new_id("gen"))
    return [
        dataclasses.replace(
            one,
            request_id=name,
            fork_of=parent.req_id,
            is_fork_point=call.fork.id is not None,
        )
        for one, name in zip(requests, names, strict=True)
    ]


async def _grammar_of(call: GenerateCall, engine: AsyncEngine) -> Grammar | None:
    """Return what the outputs must look like; None: anything goes."""
    for name, spec in call.completion.grammar_specs():
        return await engine.compile_grammar(spec, param=f"sampling_params.{name}")
    return None


def _encode(call: GenerateCall, tokenizer: Tokenizer, parent: _Parent) -> list[Prompt]:
    name = call.body.prompt_name
    return [
        Prompt(
            tokenizer.encode(prompt) if isinstance(prompt, str) else [*parent.ids, *prompt],
            f"{name}[{index}]" if call.body.is_batch else name,
        )
        for index, prompt in enumerate(call.completion.prompts)
    ]


def _writers(
    call: GenerateCall, requests: Sequence[GenerateRequest], tokenizer: Tokenizer
) -> list[GenerateWriter]:
    body = call.body
    shape = GenerateShape(
        has_logprobs=body.return_logprob,
        num_top=body.top_logprobs_num,
        prompt_start=body.logprob_start_len if body.logprob_start_len >= 0 else None,
        names=TokenNames(tokenizer) if body.return_text_in_logprobs else None,
        is_indexed=body.is_batch or len(requests) > 1,
    )
    return [
        GenerateWriter(shape, index=index, name=one.request_id, prompt_ids=one.prompt_ids)
        for index, one in enumerate(requests)
    ]
