"""The frozen values that cross between the scheduler and the runner.

    scheduler.schedule(now) -> StepPlan  ->  runner.execute(plan) -> StepResult
    scheduler.update(plan, result) -> list[ReqOutput]

A runner keeps nothing about a Req between two steps: all that it needs is in the plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from radixserve.types import (
        BlockId,
        FinishReason,
        PackedIds,
        ReqId,
        SamplingParams,
        TokenId,
    )


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy the first `num_tokens` slots of block `source` to block `target`, in every layer.

    All copies of a plan are made before any token of it is computed. No copy's source is another
    copy's target.
    """

    source: BlockId
    target: BlockId
    num_tokens: int


@dataclass(frozen=True, slots=True)
class SamplingState:
    """What the sampler needs to choose one Req's next token."""

    params: SamplingParams
    output_len: int
    """Output tokens before the one to be sampled: its place in the random stream."""
    prompt_ids: PackedIds = b""
    """The whole prompt; empty unless `params.has_penalties`."""
    output_ids: PackedIds = b""
    """All the output so far; empty unless `params.has_penalties`."""


@dataclass(frozen=True, slots=True)
class ScheduledReq:
    """One Req's share of a step: compute `extend_len` tokens from position `start`."""

    req_id: ReqId
    token_ids: PackedIds
    """The tokens to compute now: a prefill chunk, or the one token of a decode."""
    start: int
    """Tokens whose KV is already valid in `block_table`; position of the first new token."""
    block_table: PackedIds
    """Packed block ids, in order, covering at least `start + extend_len` tokens."""
    sampling: SamplingState | None
    """None while more of the prompt is left to compute: no token is sampled then."""

    @property
    def extend_len(self) -> int:
        """Tokens computed in this step, at least 1."""
        return len(self.token_ids) // 4


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One forward pass: the copies to make first, then the rows to compute."""

    step: int
    reqs: tuple[ScheduledReq, ...]
    copies: tuple[BlockCopy, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens computed by this step, over all Reqs."""
        return sum(req.extend_len for req in self.reqs)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a runner gives back for a plan."""

    step: int
    next_tokens: tuple[TokenId | None, ...]
    """Aligned with `plan.reqs`; None where `sampling` was None or the row failed."""
    row_errors: Mapping[int, str] = field(default_factory=dict)
    """Row -> sentence, for rows that failed alone (non-finite logits)."""


@dataclass(frozen=True, slots=True)
class ReqOutput:
    """What a step did for one Req. The last one of a Req, and only that, has a finish reason."""

    req_id: ReqId
    new_token_ids: tuple[TokenId, ...]
    prompt_len: int
    cached_len: int
    """Prompt tokens found in the tree when the Req was first admitted."""
    output_len: int
    finish_reason: FinishReason | None = None
    error: str | None = None
