"""The routes below ``/cache``: what is in it, what a prompt would find, and what is to stay.

GET  /cache           sizes, hits, namespaces, pins         any caller, of its own namespaces
GET  /cache/tree      the runs that rank highest            any caller; texts for admins
POST /cache/explain   what a prompt would find now          any caller
POST /cache/warm      compute a prefix, keep it             any caller; with a pin, admins
POST /cache/pin       hold a prefix for a time              admins
POST /cache/unpin                                           admins
POST /cache/flush     drop what nobody is using             admins
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web

from radixserve.engine.cache_control import MAX_PINS
from radixserve.engine.request import GenerateRequest, Usage
from radixserve.errors import PinNotFoundError, PinRefusedError
from radixserve.server.auth import caller_of, is_admin, require_admin
from radixserve.server.conversation import prompt_ids_of
from radixserve.server.errors import JSON_TYPE
from radixserve.server.exchange import current_exchange
from radixserve.server.generation import check_model, limits_of, off_the_loop, read_json
from radixserve.server.protocol.cache import (
    CacheQuery,
    ExplainBody,
    FlushBody,
    PinBody,
    TreeQuery,
    WarmBody,
    parse_cache_prompt,
    parse_query,
    parse_unpin,
)
from radixserve.server.protocol.cache_answers import (
    cache_json,
    explanation_json,
    pin_json,
    tree_json,
)
from radixserve.server.protocol.fields import parse_body
from radixserve.server.protocol.sampling import check_token_ids
from radixserve.server.protocol.tree_drawing import draw_tree
from radixserve.server.state import ENGINE, HTTP_CONFIG
from radixserve.types import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from radixserve.engine.async_engine import AsyncEngine
    from radixserve.engine.cache_control import PinAnswer
    from radixserve.server.caller import Caller
    from radixserve.server.protocol.cache import CachePrompt, PinOptions
    from radixserve.types import Namespace

NO_USAGE = Usage(prompt_tokens=0, cached_tokens=0, completion_tokens=0)
PREVIEW_COST = 128
"""Characters that one run's preview stands for when it is decided where to decode."""


async def get_cache(request: web.Request) -> web.Response:
    """Tell the cache's sizes and counters, and the caller's namespaces."""
    query = parse_query(request.query, CacheQuery)
    accepts = _visible(request, query.cache_salt, query.cache_owner)
    return _json(cache_json(request.app[ENGINE].cache.view(accepts)))


async def get_cache_tree(request: web.Request) -> web.Response:
    """Show the runs of the tree that rank highest, as JSON or, if that is preferred, as text."""
    engine = request.app[ENGINE]
    query = parse_query(request.query, TreeQuery)
    accepts = _visible(request, query.cache_salt, query.cache_owner)
    view = engine.cache.tree(by=query.by, limit=query.limit, depth=query.depth, accepts=accepts)
    decode = _decode_with(engine) if is_admin(request) else None
    cost = view.num_shown * PREVIEW_COST if decode else 0
    if "text/plain" in request.headers.get("Accept", ""):
        return web.Response(text=await off_the_loop(cost, lambda: draw_tree(view, decode)))
    return _json(await off_the_loop(cost, lambda: tree_json(view, decode)))


async def post_explain(request: web.Request) -> web.Response:
    """Tell what a prompt would find in the cache now, and what would keep it from running."""
    engine = request.app[ENGINE]
    fields = parse_cache_prompt(
        await read_json(request), ExplainBody, ignore_unknown=_ignores_unknown(request)
    )
    namespace = _namespace_of(fields, request)
    ids = await _prompt_ids(fields, engine)
    found = engine.cache.explain(
        ids, namespace, max_tokens=fields.max_tokens, priority=fields.priority
    )
    # How others' prompts go on is not told to whoever guesses how they begin.
    may_read = is_admin(request) or caller_of(request).cache_owner != ""
    return _json(explanation_json(found, _decode_with(engine) if may_read else None))


async def post_pin(request: web.Request) -> web.Response:
    """Hold what is cached of a prefix for a time."""
    require_admin(request)
    engine = request.app[ENGINE]
    fields = parse_cache_prompt(
        await read_json(request), PinBody, ignore_unknown=_ignores_unknown(request)
    )
    namespace = _namespace_of(fields, request)
    ids = await _prompt_ids(fields, engine)
    return _json(await _pin(engine, ids, namespace, fields))


async def post_unpin(request: web.Request) -> web.Response:
    """Give up the pin of a name, or all pins of a prefix.

    Raises:
        PinNotFoundError: there is none.
    """
    require_admin(request)
    engine = request.app[ENGINE]
    fields = parse_unpin(await read_json(request), ignore_unknown=_ignores_unknown(request))
    namespace = _namespace_of(fields, request)
    if fields.name is not None:
        names = [fields.name] if await engine.cache.unpin(fields.name) else []
    else:
        ids = await _prompt_ids(fields, engine)
        names = await engine.cache.unpin_prefix(ids, namespace)
    if not names:
        by_name = fields.name is not None
        raise PinNotFoundError(
            f"There is no pin {fields.name!r}." if by_name else "No pin has this prefix.",
            param="name" if by_name else "prompt",
        )
    return _json({"object": "cache.unpin", "unpinned": names})


async def post_warm(request: web.Request) -> web.Response:
    """Compute a prefix and leave it in the cache, pinned if that is asked for."""
    engine = request.app[ENGINE]
    fields = parse_cache_prompt(
        await read_json(request), WarmBody, ignore_unknown=_ignores_unknown(request)
    )
    if fields.pin is not None:
        require_admin(request)
    namespace = _namespace_of(fields, request)
    ids = await _prompt_ids(fields, engine)
    usage = await _compute(engine, ids, namespace, fields=fields, caller=caller_of(request))
    found = engine.cache.explain(ids, namespace)
    kept = len(ids) if found.diverges_at is None else found.diverges_at
    answer = {
        "object": "cache.warm",
        "prompt_tokens": len(ids),
        "cached_tokens": usage.cached_tokens,
        "computed_tokens": len(ids) - usage.cached_tokens,
        "kept_tokens": kept - kept % engine.cache.block_size,
    }
    if fields.pin is not None:
        answer["pin"] = await _pin(engine, ids, namespace, fields.pin)
    return _json(answer)


async def post_flush(request: web.Request) -> web.Response:
    """Drop everything, or what some namespaces have, that no request is using now.

    Requests go on; what they hold stays, and is told as `kept_blocks`.
    """
    require_admin(request)
    engine = request.app[ENGINE]
    body = await read_json(request) if request.body_exists else {}
    fields = parse_body(body, FlushBody, {}, ignore_unknown=_ignores_unknown(request))
    done = await engine.cache.flush(_visible(request, fields.cache_salt, fields.cache_owner))
    return _json(
        {
            "object": "cache.flush",
            "flushed_blocks": done.flushed_blocks,
            "flushed_tokens": done.flushed_blocks * engine.cache.block_size,
            "kept_blocks": done.kept_blocks,
            "dropped_pins": done.dropped_pins,
        }
    )


async def _pin(
    engine: AsyncEngine, ids: Sequence[int], namespace: Namespace, wanted: PinBody | PinOptions
) -> dict[str, Any]:
    answer = await engine.cache.pin(
        ids,
        namespace,
        ttl_s=wanted.ttl_s,
        name=wanted.name or "",
        priority=wanted.priority,
    )
    if not answer.is_pinned:
        raise PinRefusedError(_why_not(answer, engine.cache.block_size))
    return pin_json(answer, wanted.ttl_s)


def _why_not(answer: PinAnswer, block_size: int) -> str:
    if answer.cached_len == 0:
        return (
            f"Nothing of this prefix is cached in whole blocks of {block_size} tokens; "
            "POST /cache/warm computes it."
        )
    if answer.held_blocks + answer.cost_blocks <= answer.max_held_blocks:
        return f"There are {answer.num_pins} pins, of at most {MAX_PINS}."
    return (
        f"This pin would hold {answer.cost_blocks} more blocks: {answer.held_blocks} of the "
        f"{answer.max_held_blocks} that may be held (--hold-share) are held already."
    )


async def _compute(
    engine: AsyncEngine,
    ids: Sequence[int],
    namespace: Namespace,
    *,
    fields: WarmBody,
    caller: Caller,
) -> Usage:
    """Run a request for the sake of its prompt's KV; its one output token is dropped."""
    wanted = GenerateRequest(
        prompt_ids=ids,
        params=SamplingParams(temperature=0.0, max_tokens=1),
        ignore_eos=True,
        cache_salt=namespace.salt,
        cache_owner=namespace.owner,
        priority=fields.priority,
        tenant=caller.name,
        timeout_s=fields.timeout_s,
    )
    usage = NO_USAGE
    async with engine.submit(wanted) as stream:
        async for delta in stream:
            usage = delta.usage
    exchange = current_exchange()
    if exchange is not None:
        exchange.note([stream])
    return usage


def _ignores_unknown(request: web.Request) -> bool:
    return request.app[HTTP_CONFIG].unknown_fields == "ignore"


async def _prompt_ids(fields: CachePrompt, engine: AsyncEngine) -> list[int]:
    """Return the ids that a generating route would run with.

    Raises:
        InvalidRequestError: there is an unknown token, or the chat template refuses the messages.
        ModelNotFoundError: another model is asked for.
    """
    check_model(fields.model, engine.info)
    if fields.messages is not None:
        return await prompt_ids_of(fields.chat(), engine.chat_template)
    prompt = fields.prompt
    if isinstance(prompt, str):
        return await off_the_loop(
            len(prompt),
            lambda: engine.tokenizer.encode(prompt, add_special_tokens=fields.add_special_tokens),
        )
    assert prompt is not None
    check_token_ids(prompt, limits_of(engine.info), "prompt")
    return prompt


def _namespace_of(fields: CachePrompt, request: web.Request) -> Namespace:
    """Return where a prompt belongs: the caller's own part of the cache, or that of another key.

    Raises:
        PermissionDeniedError: it is another's, and the caller is no admin.
    """
    owner = _owner(request, fields.cache_owner)
    return request.app[ENGINE].cache.namespace(salt=fields.cache_salt, owner=owner)


def _owner(request: web.Request, wanted: str | None) -> str:
    own = caller_of(request).cache_owner
    if wanted is None or wanted == own:
        return own
    require_admin(request)
    return wanted


def _visible(
    request: web.Request, salt: str | None, owner: str | None
) -> Callable[[Namespace], bool]:
    """Return which namespaces a caller sees, of those with a salt and an owner if these are given.

    An admin sees all. Others see their own; and where all callers share one owner, none with a
    salt that they do not know.

    Raises:
        PermissionDeniedError: another's are asked for, and the caller is no admin.
    """
    if not is_admin(request):
        owner = _owner(request, owner)
        salt = "" if salt is None and not owner else salt
    return lambda namespace: (
        (salt is None or namespace.salt == salt) and (owner is None or namespace.owner == owner)
    )


def _decode_with(engine: AsyncEngine) -> Callable[[Sequence[int]], str]:
    decode = engine.tokenizer.decode
    return lambda ids: decode(ids, skip_special_tokens=False)


def _json(value: Any) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type=JSON_TYPE)
