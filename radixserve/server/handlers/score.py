"""``POST /v1/score``."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson
from aiohttp import web

from radixserve.engine.scoring import ScoreTerms, Scoring
from radixserve.server.errors import JSON_TYPE
from radixserve.server.generation import check_model, limits_of, off_the_loop, read_json
from radixserve.server.merge import open_streams
from radixserve.server.protocol.sampling import check_token_ids, output_len
from radixserve.server.protocol.score import parse_score, score_json
from radixserve.server.request_id import new_id
from radixserve.server.state import ENGINE, HTTP_CONFIG

if TYPE_CHECKING:
    from radixserve.engine.info import ModelInfo
    from radixserve.server.protocol.score import ScoreRequest
    from radixserve.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class _Encoded:
    """The ids of a call's texts, and the texts of its options."""

    prompt_ids: list[int]
    options: list[list[int]]
    texts: list[str]


async def post_score(request: web.Request) -> web.Response:
    """Say how likely each option is after the prompt."""
    engine = request.app[ENGINE]
    ignore_unknown = request.app[HTTP_CONFIG].unknown_fields == "ignore"
    fields = parse_score(await read_json(request), ignore_unknown=ignore_unknown)
    check_model(fields.model, engine.info)
    _check_ids(fields, engine.info)
    found = await off_the_loop(fields.text_len, lambda: _encode(fields, engine.tokenizer))
    _check_room(found, engine.info)
    answer_id = new_id("score")
    terms = ScoreTerms(
        cache_salt=fields.cache_salt or "",
        priority=fields.priority,
        tenant=fields.user or "",
        timeout_s=fields.timeout_s,
        request_id=answer_id,
    )
    created = int(time.time())
    scoring = Scoring(found.prompt_ids, found.options, terms)
    async with open_streams(engine, scoring.requests) as deltas:
        async for index, delta in deltas:
            scoring.push(index, delta)
    body = score_json(
        scoring.scores(),
        found.texts,
        fields.normalization,
        engine.info,
        answer_id=answer_id,
        created=created,
    )
    return web.Response(body=orjson.dumps(body), content_type=JSON_TYPE)


def _check_ids(fields: ScoreRequest, info: ModelInfo) -> None:
    """Accept ids of the vocabulary.

    Raises:
        InvalidRequestError: names the prompt or the option that has another.
    """
    limits = limits_of(info)
    if not isinstance(fields.prompt, str):
        check_token_ids(fields.prompt, limits, "prompt")
    for index, option in enumerate(fields.options):
        if not isinstance(option, str):
            check_token_ids(option, limits, f"options[{index}]")


def _encode(fields: ScoreRequest, tokenizer: Tokenizer) -> _Encoded:
    prompt = fields.prompt
    prompt_ids = (
        tokenizer.encode(prompt, add_special_tokens=fields.add_special_tokens)
        if isinstance(prompt, str)
        else prompt
    )
    options = [_option_ids(option, fields, prompt_ids, tokenizer) for option in fields.options]
    texts = [
        option if isinstance(option, str) else tokenizer.decode(option, skip_special_tokens=False)
        for option in fields.options
    ]
    return _Encoded(prompt_ids, options, texts)


def _option_ids(
    option: str | list[int], fields: ScoreRequest, prompt_ids: list[int], tokenizer: Tokenizer
) -> list[int]:
    """Return an option's ids after the prompt; see `protocol.score` for the rule."""
    if not isinstance(option, str):
        return option
    if isinstance(fields.prompt, str):
        both = tokenizer.encode(
            fields.prompt + option, add_special_tokens=fields.add_special_tokens
        )
        if both[: len(prompt_ids)] == prompt_ids and len(both) > len(prompt_ids):
            return both[len(prompt_ids) :]
    return tokenizer.encode(option, add_special_tokens=False)


def _check_room(found: _Encoded, info: ModelInfo) -> None:
    """Accept options that fit in the context after the prompt.

    Raises:
        PromptTooLongError: one does not.
    """
    longest = max(range(len(found.options)), key=lambda index: len(found.options[index]))
    output_len(
        prompt_len=len(found.prompt_ids) + len(found.options[longest]),
        asked=None,
        default=1,
        limits=limits_of(info),
        param=f"options[{longest}]",
    )
