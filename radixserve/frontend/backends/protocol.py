"""What a prompt program asks of whoever runs its calls."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from radixserve.frontend.constraint import Constraint
    from radixserve.frontend.pieces import Part, Transcript
    from radixserve.types import TokenId


class Capability(enum.Enum):
    """What a backend may or may not be able to do."""

    PLAIN = "plain prompts"
    CHAT = "chats"
    REGEX = "output that follows a regular expression"
    JSON = "output that follows a JSON schema"
    GRAMMAR = "output that follows a grammar"
    SCORE = "log-probabilities of given texts"
    TOKENS = "token ids of its output"
    HINTS = "hints about the cache"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallHints:
    """What a program knows about a call's future. Orders eviction and queueing, and no more."""

    program: str = ""
    """Of one run: its calls are counted together by the order `fair`."""
    priority: int = 0
    ttl_s: float = 0.0
    pause_s: float | None = None
    """The program runs a tool and comes back after about so many seconds."""
    is_end: bool = False
    """Nothing follows on this branch."""
    prefix_len: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GenCall:
    """One generation."""

    path: str
    transcript: Transcript
    """A chat's last turn is the assistant's and open."""
    parent: str = ""
    """The call that the transcript goes on from, by its `GenDone.call_id`: its KV is used to the
    last token, as far as it is still there."""
    max_tokens: int
    temperature: float
    seed: int
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()
    constraint: Constraint | None = None
    timeout_s: float | None = None
    logprobs: int | None = None
    hints: CallHints = field(default_factory=CallHints)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallUsage:
    """What a call cost; tokens and seconds."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    forced_tokens: int = 0
    ttft_s: float = 0.0
    total_s: float = 0.0
    waits: int = 0
    """How often there was no room for it, and it came again later."""

    @property
    def computed_tokens(self) -> int:
        """Input tokens that had to be computed."""
        return self.input_tokens - self.cached_tokens

    def __add__(self, other: CallUsage) -> CallUsage:
        return CallUsage(
            input_tokens=self.input_tokens + other.input_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            forced_tokens=self.forced_tokens + other.forced_tokens,
            ttft_s=self.ttft_s + other.ttft_s,
            total_s=self.total_s + other.total_s,
            waits=self.waits + other.waits,
        )


def scoring_usage(requests: Iterable[tuple[int, int]], took_s: float) -> CallUsage:
    """Return what scoring some options cost, counted as one call.

    Args:
        requests: (prompt tokens, cached tokens) of each option's request; an option whose tokens
            others have scored has none, and both are 0.
        took_s: All of it is time to the first token: nothing is produced.
    """
    asked = [(tokens, cached) for tokens, cached in requests if tokens]
    return CallUsage(
        input_tokens=max(tokens for tokens, _ in asked),
        cached_tokens=min(cached for _, cached in asked),
        ttft_s=took_s,
        total_s=took_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GenDone:
    """The end of a generation."""

    text: str
    """All of it."""
    parts: tuple[Part, ...]
    """What a prompt goes on with: the same text, with its tokens where the backend tells them."""
    finish_reason: str
    """stop, length or timeout."""
    call_id: str = ""
    """What calls that go on from here name as their parent; empty if that brings nothing."""
    usage: CallUsage
    logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreCall:
    """How likely some texts are as continuations."""

    path: str
    transcript: Transcript
    options: tuple[str, ...]
    closes_turn: bool = False
    """Whether each option is followed by what ends the assistant's turn, which counts too."""
    timeout_s: float | None = None
    hints: CallHints = field(default_factory=CallHints)


@dataclass(frozen=True, slots=True)
class OptionTokens:
    """One option, token by token."""

    token_ids: tuple[TokenId, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ScoreDone:
    """All the options, in the order given."""

    options: tuple[OptionTokens, ...]
    usage: CallUsage


@dataclass(frozen=True, slots=True)
class WarmDone:
    """A prompt is in the cache."""

    call_id: str
    usage: CallUsage


class Backend(Protocol):
    """Runs calls. Used from one event loop."""

    @property
    def name(self) -> str:
        """For messages and reports."""
        ...

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What it can do; a call that needs more is refused before it is sent."""
        ...

    async def start(self) -> None:
        """Get ready; idempotent. Called in the loop in which it is used from then on."""
        ...

    async def close(self) -> None:
        """Let go of everything; idempotent."""
        ...

    def generate(self, call: GenCall) -> AsyncIterator[str | GenDone]:
        """Yield pieces of text as they come, and at the end a `GenDone`.

        Leaving the iteration early gives the call up.

        Raises:
            RadixServeError: the backend refused or failed.
        """
        ...

    async def score(self, call: ScoreCall) -> ScoreDone:
        """Return how likely each option is.

        Raises:
            RadixServeError: the backend refused or failed.
        """
        ...

    async def warm(self, transcript: Transcript, parent: str, hints: CallHints) -> WarmDone:
        """Compute a prompt, so that it is cached when this returns."""
        ...

    def forget(self, call_ids: Sequence[str]) -> None:
        """Say that nobody goes on from these calls any more."""
        ...
