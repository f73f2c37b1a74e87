"""From a Req and its share to the row of the plan that a runner reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve.core.plan import PromptScoring, SamplingState, ScheduledReq
from radixserve.types import ID_BYTES

if TYPE_CHECKING:
    from radixserve.core.req import Req


def row_of(req: Req, extend_len: int) -> ScheduledReq:
    """Return a running Req's row: its next `extend_len` tokens."""
    assert req.lease is not None
    start = req.computed_len
    is_last = extend_len == req.remaining_len
    return ScheduledReq(
        req_id=req.req_id,
        token_ids=bytes(req.tokens[start * ID_BYTES : (start + extend_len) * ID_BYTES]),
        start=start,
        block_table=req.lease.table.tobytes(),
        sampling=_sampling_state(req) if is_last else None,
        scoring=_scoring(req, start, extend_len) if req.scored_len < req.prompt_len else None,
    )


def _scoring(req: Req, start: int, extend_len: int) -> PromptScoring | None:
    """The chunk's rows, as far as the prompt's next token is to be told of: row r tells r + 1."""
    first = max(req.scored_len, start + 1)
    end = min(start + extend_len + 1, req.prompt_len)
    if first >= end:
        return None
    targets = bytes(req.tokens[first * ID_BYTES : end * ID_BYTES])
    return PromptScoring(first - 1 - start, targets, req.spec.params.prompt_logprobs or 0)


def _sampling_state(req: Req) -> SamplingState:
    params = req.spec.params
    if not req.needs_output:
        return SamplingState(params, req.output_len)
    output = bytes(req.tokens[len(req.spec.prompt) :])
    prompt = req.spec.prompt if params.has_penalties else b""
    return SamplingState(params, req.output_len, prompt, output)
