"""Batches in OpenAI's words: the body, the queries, the answers."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from radixserve.server.protocol.body import RequestBody
from radixserve.server.protocol.cache import parse_query
from radixserve.server.protocol.fields import parse_body
from radixserve.server.protocol.refusal import refusal
from radixserve.server.protocol.unbuilt import Unbuilt
from radixserve.server.store.batches import StoredBatch
from radixserve.server.store.page import PageQuery

if TYPE_CHECKING:
    from collections.abc import Mapping

    from radixserve.server.caller import Caller

MAX_BATCHES_SHOWN = 100
MAX_WINDOW_H = 14 * 24
_WINDOW = re.compile(r"([1-9][0-9]{0,2})h")
_TIMES = (
    "in_progress",
    "finalizing",
    "completed",
    "failed",
    "expired",
    "cancelling",
    "cancelled",
)


class BatchBody(RequestBody):
    """One call of ``POST /v1/batches``."""

    input_file_id: Annotated[str, Field(min_length=1, max_length=128)]
    endpoint: Literal["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"]
    """What every line of the file asks for."""
    completion_window: Annotated[str, Field(max_length=8)]
    """As in 24h, up to 336h; what has not been run then is given up."""
    metadata: (
        Annotated[
            dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
            Field(max_length=16),
        ]
        | None
    ) = None


class BatchesQuery(RequestBody):
    """Which batches are listed."""

    after: Annotated[str, Field(max_length=128)] | None = None
    """The id of the last batch of the page before."""
    limit: Annotated[int, Field(ge=1, le=MAX_BATCHES_SHOWN)] = 20


_UNBUILT: Mapping[str, Unbuilt] = {"output_expires_after": Unbuilt()}
"""Files stay until somebody deletes them."""


def parse_batch(body: Any, *, ignore_unknown: bool) -> BatchBody:
    """Return the typed body that a JSON value stands for.

    Raises:
        InvalidRequestError: names the field at fault.
    """
    fields = parse_body(body, BatchBody, _UNBUILT, ignore_unknown=ignore_unknown)
    _hours(fields.completion_window)
    return fields


def parse_batches_query(query: Mapping[str, str]) -> PageQuery:
    """Return which batches are asked for.

    Raises:
        InvalidRequestError: names the parameter at fault.
    """
    fields = parse_query(query, BatchesQuery)
    return PageQuery(after=fields.after, limit=fields.limit)


def new_batch(fields: BatchBody, caller: Caller) -> StoredBatch:
    """Return the batch that is asked for, created now."""
    now = int(time.time())
    return StoredBatch(
        owner=caller.name,
        cache_owner=caller.cache_owner,
        endpoint=fields.endpoint,
        input_file_id=fields.input_file_id,
        completion_window=fields.completion_window,
        created_at=now,
        expires_at=now + 3600 * _hours(fields.completion_window),
        metadata=fields.metadata,
    )


def batch_json(batch: StoredBatch, model: str) -> dict[str, Any]:
    """Return a batch as OpenAI's clients read it."""
    total = batch.prompt_tokens + batch.output_tokens
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": model,
        "errors": {"object": "list", "data": batch.errors} if batch.errors else None,
        "input_file_id": batch.input_file_id,
        "completion_window": batch.completion_window,
        "status": batch.status,
        "output_file_id": batch.output_file_id,
        "error_file_id": batch.error_file_id,
        "created_at": batch.created_at,
        "expires_at": batch.expires_at,
        **{f"{state}_at": batch.times.get(state) for state in _TIMES},
        "request_counts": {
            "total": batch.num_lines,
            "completed": batch.num_done,
            "failed": batch.num_failed,
        },
        "usage": {
            "input_tokens": batch.prompt_tokens,
            "input_tokens_details": {"cached_tokens": batch.cached_tokens},
            "output_tokens": batch.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": total,
        }
        if total
        else None,
        "metadata": batch.metadata,
    }


def _hours(window: str) -> int:
    found = _WINDOW.fullmatch(window)
    if found is None or int(found[1]) > MAX_WINDOW_H:
        raise refusal(
            f"completion_window: must be like 24h, at most {MAX_WINDOW_H}h; got {window!r}.",
            "completion_window",
        )
    return int(found[1])
