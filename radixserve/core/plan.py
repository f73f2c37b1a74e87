"""The frozen values that cross between the scheduler and the runner.

    scheduler.schedule(now) -> StepPlan  ->  runner.execute(plan) -> StepResult
    scheduler.update(plan, result) -> list[ReqOutput]

A runner keeps nothing about a Req between two steps: all that it needs is in the plan. The one
exception is a plan that was made ahead of the result of the step before: it takes that one's
samples by their rows. Plans are computed in the order in which they were given out.

What exists once a row is a named tuple: it is made in a third of the time of a frozen dataclass.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from radixserve.types import ID_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from radixserve.types import (
        BlockId,
        FinishReason,
        PackedIds,
        ReqId,
        SamplingParams,
        TokenId,
        TokenLogprob,
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
class BlockSwap:
    """Whole blocks of one Req that move between the pool and the swap space in host memory."""

    req_id: ReqId
    blocks: PackedIds
    """Packed ids of blocks in the pool."""
    host_blocks: PackedIds
    """Packed ids of as many blocks in the swap space, in the same order."""

    @property
    def num_blocks(self) -> int:
        """Blocks that move."""
        return len(self.blocks) // ID_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferCosts:
    """What moving KV costs on this machine, and what computing it costs. Measured, not guessed."""

    block_bytes: int
    """Bytes of one block, over all layers."""
    copy_bytes_per_s: float
    """Between pool and host memory, one way."""
    prefill_tokens_per_s: float
    """Beyond the last of `few_tokens`."""
    copy_overhead_s: float = 0.0
    """Of one transfer, however small."""
    few_tokens: tuple[tuple[int, float], ...] = ()
    """(tokens, seconds by which a step that computes so many more takes longer), ascending. The
    first ones are nearly free where a step is bound by reading the weights."""

    def copy_s(self, num_blocks: int) -> float:
        """Return the seconds that moving some blocks, one way and at once, takes."""
        if num_blocks == 0:
            return 0.0
        return self.copy_overhead_s + num_blocks * self.block_bytes / self.copy_bytes_per_s

    def prefill_s(self, num_tokens: int) -> float:
        """Return the seconds by which computing the KV of some tokens makes steps longer."""
        len_before, s_before = 0, 0.0
        for length, seconds in self.few_tokens:
            if num_tokens <= length:
                share = (num_tokens - len_before) / (length - len_before)
                return s_before + share * (seconds - s_before)
            len_before, s_before = length, seconds
        return s_before + (num_tokens - len_before) / self.prefill_tokens_per_s


class SamplingState(NamedTuple):
    """What the sampler needs to choose one Req's next token."""

    params: SamplingParams
    output_len: int
    """Output tokens before the one to be sampled: its place in the random stream."""
    prompt_ids: PackedIds = b""
    """The whole prompt; empty unless `params.has_penalties`."""
    output_ids: PackedIds = b""
    """All the output so far; empty unless `params.needs_output`."""


class PromptScoring(NamedTuple):
    """Which of a chunk's rows tell how likely the prompt's next token was."""

    first_row: int
    """Row of the Req's own chunk, from 0."""
    targets: PackedIds
    """The tokens that follow `first_row` and the rows after it."""
    num_top: int
    """Likeliest tokens wanted beside each."""


class ScheduledReq(NamedTuple):
    """One Req's share of a step: compute `extend_len` tokens from position `start`."""

    req_id: ReqId
    token_ids: PackedIds
    """The tokens to compute now: a prefill chunk, or the one token of a decode; that one stands
    as 0 where the row `takes` it."""
    start: int
    """Tokens whose KV is already valid in `block_table`; position of the first new token."""
    block_table: PackedIds
    """Packed block ids, in order, covering at least `start + extend_len` tokens."""
    sampling: SamplingState | None
    """None while more of the prompt is left to compute: no token is sampled then."""
    scoring: PromptScoring | None = None
    """What the caller wants to know of this chunk's prompt tokens."""
    takes: int | None = None
    """Row of the step that the plan `follows`: the one token to compute is what it samples."""

    @property
    def extend_len(self) -> int:
        """Tokens computed in this step, at least 1."""
        return len(self.token_ids) // ID_BYTES


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One forward pass, in this order: swap out, swap in, copy, compute.

    A block that is swapped out may belong to somebody else already, who is swapped into it, copies
    into it or computes in it in this very step: it is read before any of that.
    """

    step: int
    reqs: tuple[ScheduledReq, ...]
    copies: tuple[BlockCopy, ...] = ()
    swap_outs: tuple[BlockSwap, ...] = ()
    """From the pool to host memory, for Reqs that were preempted."""
    swap_ins: tuple[BlockSwap, ...] = ()
    """From host memory to the pool, for Reqs that run again."""
    follows: int | None = None
    """The step, given out just before and perhaps still running, whose samples this one takes;
    None if all its tokens are here. Such a plan is nothing but decodes that take their tokens."""

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
    forced_tokens: Mapping[int, tuple[TokenId, ...]] = field(default_factory=dict)
    """Row -> the tokens that a grammar leaves no choice about after the sampled one."""
    logprobs: Mapping[int, TokenLogprob] = field(default_factory=dict)
    """Row -> how likely its next token was, where `params.logprobs` asks for it."""
    prompt_logprobs: Mapping[int, tuple[TokenLogprob, ...]] = field(default_factory=dict)
    """Row -> one for each of `scoring.targets`."""


class ReqOutput(NamedTuple):
    """What a step did for one Req. The last one of a Req, and only that, has a finish reason."""

    req_id: ReqId
    new_token_ids: tuple[TokenId, ...]
    prompt_len: int
    cached_len: int
    """Prompt tokens found in the tree when the Req was first admitted."""
    output_len: int
    finish_reason: FinishReason | None = None
    error: str | None = None
    forced_len: int = 0
    """Output tokens so far that a grammar left no choice about."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """One for each new token, if asked for; nothing is forced then, so that all were sampled."""
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """Of the prompt tokens that this step told of, in order; an output may bring these alone."""
