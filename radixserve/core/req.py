"""`Req`: one sequence in the scheduler, and the table of what may happen to it.

                admit             finish
    WAITING ------------> RUNNING ------> FINISHED
       ^  |                 |  |             ^
       |  `-- finish -------|--|-------------'
       `------ preempt -----'

A preempted Req waits like any other. It may have a record of KV saved in host memory (`swapped`),
which the admission that ends the wait uses or drops.

How far a Req has come is derived from three lengths, never stored as a phase:

    tokens     [ p p p p p p p p | o o o ]       prompt, then output
                         ^              ^
                   computed_len      total_len
    remaining_len = total_len - computed_len     1: a decode; more: (re)computing the prompt
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from radixserve.core.eviction.hints import NO_HINT, Ending, ReleaseHint
from radixserve.core.plan import ReqOutput
from radixserve.errors import InvariantError
from radixserve.types import ID_BYTES, FinishReason, Namespace, ReqId, pack_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.core.prefix_cache import Lease
    from radixserve.core.prefix_match import PrefixMatch
    from radixserve.core.swap_space import SwappedKV
    from radixserve.types import PackedIds, SamplingParams, TokenId, TokenLogprob


class ReqState(enum.Enum):
    """Where a Req is. The inbox comes before the first of them."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class ReqEvent(enum.Enum):
    """What can happen to a Req."""

    ADMIT = "admit"
    PREEMPT = "preempt"
    FINISH = "finish"


TRANSITIONS: dict[tuple[ReqState, ReqEvent], ReqState] = {
    (ReqState.WAITING, ReqEvent.ADMIT): ReqState.RUNNING,
    (ReqState.RUNNING, ReqEvent.PREEMPT): ReqState.WAITING,
    (ReqState.WAITING, ReqEvent.FINISH): ReqState.FINISHED,
    (ReqState.RUNNING, ReqEvent.FINISH): ReqState.FINISHED,
}
"""Anything that is not in here is a bug."""


TURN_ENDED = ReleaseHint(ending=Ending.TURN)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReqSpec:
    """What a caller asks for. `params.seed` and the stop tokens have been filled in."""

    req_id: ReqId
    prompt: PackedIds
    params: SamplingParams
    namespace: Namespace = field(default_factory=Namespace)
    priority: int = 0
    """Higher goes first."""
    tenant: str = ""
    """Whom the work is counted for by the policy that shares fairly."""
    deadline: float | None = None
    """Seconds on `schedule`'s clock after which the Req ends with what it has."""
    hint: ReleaseHint = NO_HINT
    """What the caller knows of the future of this path; orders eviction, and no more."""
    fork_of: ReqId | None = None
    """A running Req, or a fork point, whose tokens this prompt extends: its partly filled block
    can be copied."""
    is_fork_point: bool = False
    """Keep the lease when the Req has ended by itself: see `fork_points`."""
    is_next_step: bool = False
    """It goes on with the work of a Req that has just ended (a beam's next token), and so before
    those that have not run yet."""

    @property
    def prompt_len(self) -> int:
        """Tokens in the prompt."""
        return len(self.prompt) // ID_BYTES


class Req:
    """One sequence. Written by the scheduler alone."""

    __slots__ = (
        "admitted_once",
        "arrival",
        "borrowed_len",
        "cached_len",
        "computed_len",
        "leader",
        "leader_span",
        "lease",
        "match_memo",
        "needs_output",
        "num_forced",
        "num_new",
        "num_preemptions",
        "preempted_len",
        "prompt_len",
        "scored_len",
        "spec",
        "state",
        "swapped",
        "tokens",
    )

    def __init__(self, spec: ReqSpec, *, arrival: int) -> None:
        self.spec = spec
        self.arrival = arrival
        """Place in the order of arrival; kept through preemptions."""
        self.state = ReqState.WAITING
        self.tokens = bytearray(spec.prompt)
        """Packed prompt and output."""
        self.computed_len = 0
        """Leading tokens whose KV is valid."""
        self.cached_len = 0
        """Prompt tokens found in the cache at the first admission; later ones do not count."""
        self.borrowed_len = 0
        """Leading tokens that others had computed before this Req, or before the first of those
        that it goes on from."""
        self.admitted_once = False
        self.prompt_len = spec.prompt_len
        """Tokens in the prompt."""
        self.needs_output = spec.params.needs_output
        """Whether the sampler needs to see the output."""
        self.num_new = 1
        """Tokens that the last step appended: the sampled one and those a grammar forced."""
        self.num_forced = 0
        """Output tokens that a grammar forced."""
        self.scored_len = _first_scored(spec)
        """Prompt positions before this have had their log-probability told, or need none."""
        self.lease: Lease | None = None
        self.num_preemptions = 0
        self.preempted_len = 0
        """Most tokens that had been computed when the Req was preempted: up to here, computing is
        computing again."""
        self.swapped: SwappedKV | None = None
        """KV in host memory, of a Req that was preempted and waits. Written by `SwapSpace`."""
        self.match_memo: PrefixMatch | None = None
        """The last match; good for as long as the tree's version is the same."""
        self.leader: Req | None = None
        """A running Req that is computing a prefix of this one's tokens."""
        self.leader_span = 0
        """How many leading tokens it has in common with this one."""

    def __repr__(self) -> str:
        return (
            f"<Req {self.req_id} {self.state.value} "
            f"{self.computed_len}/{self.total_len} (prompt {self.prompt_len})>"
        )

    @property
    def req_id(self) -> ReqId:
        """The Req's name."""
        return self.spec.req_id

    @property
    def total_len(self) -> int:
        """Tokens of prompt and output."""
        return len(self.tokens) // ID_BYTES

    @property
    def output_len(self) -> int:
        """Tokens produced."""
        return len(self.tokens) // ID_BYTES - self.prompt_len

    @property
    def has_run(self) -> bool:
        """Whether it was preempted, or goes on with what another one began."""
        return self.num_preemptions > 0 or self.spec.is_next_step

    @property
    def remaining_len(self) -> int:
        """Tokens to compute before the next one can be sampled; at least 1."""
        return (len(self.tokens) // ID_BYTES) - self.computed_len

    @property
    def is_decoding(self) -> bool:
        """Whether nothing is left to compute but what the last step appended."""
        return self.remaining_len <= self.num_new

    @property
    def reusable_len(self) -> int:
        """Most leading tokens whose KV may come from somebody else.

        At least one token is left to compute, and so are those whose logits somebody wants.
        """
        if self.scored_len < self.prompt_len:
            return self.scored_len - 1
        return self.total_len - 1

    @property
    def max_total_len(self) -> int:
        """Tokens of prompt and output when the Req ends at its own limit."""
        return self.prompt_len + self.spec.params.max_tokens

    def append(self, tokens: Sequence[TokenId]) -> FinishReason | None:
        """Add output tokens, up to the one that ends the Req.

        Returns: why the Req has ended with the last one added; None if it goes on.
        """
        reason = None
        num_new = 0
        for token in tokens:
            self.tokens += pack_ids((token,))
            num_new += 1
            reason = self.ends_with(token)
            if reason is not None:
                break
        self.num_new = num_new
        self.num_forced += num_new - 1
        return reason

    def apply(self, event: ReqEvent) -> None:
        """Change state as the table says.

        Raises:
            InvariantError: the table has no such transition (9).
        """
        after = TRANSITIONS.get((self.state, event))
        if after is None:
            raise InvariantError(9, f"{event.value} of {self!r}")
        self.state = after

    def ends_with(self, token: TokenId) -> FinishReason | None:
        """Return why the Req is finished now that `token`, already appended, came; else None.

        A grammar that leaves nothing but the end wins over `min_tokens`.
        """
        params = self.spec.params
        if token in params.stop_token_ids and (
            self.output_len >= params.min_tokens or params.grammar is not None
        ):
            return FinishReason.STOP
        if self.output_len >= params.max_tokens:
            return FinishReason.LENGTH
        return None

    def release_hint(self, reason: FinishReason) -> ReleaseHint:
        """Return what is known of the path's future now that the Req ends for `reason`."""
        hint = self.spec.hint
        if reason is not FinishReason.STOP or hint.ending is not Ending.UNKNOWN:
            return hint
        return TURN_ENDED if hint is NO_HINT else replace(hint, ending=Ending.TURN)

    def output(
        self,
        new_tokens: tuple[TokenId, ...],
        *,
        reason: FinishReason | None = None,
        error: str | None = None,
        logprobs: tuple[TokenLogprob, ...] = (),
        prompt_logprobs: tuple[TokenLogprob, ...] = (),
    ) -> ReqOutput:
        """Return what a step did for this Req.

        Args:
            new_tokens: Already appended.
            reason: Why the Req has ended, if it has.
            error: What went wrong, if the reason is ERROR.
            logprobs: Of the new tokens.
            prompt_logprobs: Of the prompt tokens that the step told of.
        """
        return ReqOutput(
            req_id=self.req_id,
            new_token_ids=new_tokens,
            prompt_len=self.prompt_len,
            cached_len=self.cached_len,
            output_len=self.output_len,
            finish_reason=reason,
            error=error,
            forced_len=self.num_forced,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
        )


def _first_scored(spec: ReqSpec) -> int:
    """Return the first prompt position that is to be told of; the first token never is."""
    if spec.params.prompt_logprobs is None:
        return spec.prompt_len
    return max(1, spec.params.prompt_logprobs_start)
