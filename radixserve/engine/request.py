"""What goes into an engine and what comes out: frozen values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from radixserve.core.eviction.hints import NO_HINT, Ending, Keep, ReleaseHint
from radixserve.types import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.types import FinishReason, TokenLogprob

__all__ = ["Ending", "GenerateRequest", "Keep", "ReleaseHint", "TextDelta", "Usage"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One sequence to be continued.

    `params.stop_token_ids` are the caller's own; the engine adds the model's end-of-sequence ids
    unless `ignore_eos`.
    """

    prompt_ids: Sequence[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    stop: tuple[str, ...] = ()
    """Strings that end the output."""
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    cache_salt: str = ""
    """Requests with different salts never share KV."""
    cache_owner: str = ""
    """Nor do those with different owners: the server puts the caller's name here."""
    priority: int = 0
    """Higher goes first."""
    hint: ReleaseHint = NO_HINT
    """What the caller knows of this path's future: hold it for a time, keep its prefix only, the
    session's end. Orders eviction, and no more."""
    tenant: str = ""
    """Whom the work is counted for by the scheduling policy `fair`."""
    timeout_s: float | None = None
    """Seconds from now after which the request ends: with an error if it is still waiting, else
    with the output it has."""
    request_id: str = ""
    """Unique among the live requests; made by the engine when empty."""
    fork_of: str = ""
    """A running request, or a fork point, whose tokens this prompt extends: even its partly
    filled block is shared, by a copy."""
    is_fork_point: bool = False
    """Keep the last, partly filled block when the request has ended by itself, for others that go
    on from there (`fork_of`): until `AsyncEngine.forget`, or until memory is short."""
    is_next_step: bool = False
    """This goes on with what `fork_of` began, and so before requests that have not run yet."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request so far."""

    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens that came from the prefix cache."""
    completion_tokens: int
    forced_tokens: int = 0
    """Output tokens that a grammar left no choice about: they cost no forward pass of their own."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    """What one step, or several if the reader is slow, added to a request's output."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    """Set in the last delta only."""
    stop_reason: str | int | None
    """The stop string, or the caller's stop token, that ended the output."""
    usage: Usage
    logprobs: tuple[TokenLogprob, ...] = ()
    """Of all the tokens, the one that ended the output included, if asked for."""
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """Of the prompt's tokens from `prompt_logprobs_start`, at the latest with the first token."""

    def merged_with(self, later: TextDelta) -> TextDelta:
        """Return one delta that says what this one and then `later` say."""
        return TextDelta(
            self.text + later.text,
            self.token_ids + later.token_ids,
            later.finish_reason,
            later.stop_reason,
            later.usage,
            self.logprobs + later.logprobs,
            self.prompt_logprobs + later.prompt_logprobs,
        )
