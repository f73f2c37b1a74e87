"""A chat of several turns: what was said, and what an answer brings with it.

Conversation   the messages, kept here
ChatBackend    turns messages into AnswerParts: a server over HTTP, or an engine in this process
AnswerClock    times the parts and describes the answer in one line
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from radixserve.errors import RadixServeError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

Message = dict[str, str]
"""`role` and `content`, as in the chat completions API."""


class ChatError(RadixServeError):
    """The other side cannot be reached, or refused; the message is for the user."""


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """How many tokens an answer took."""

    prompt: int
    cached: int
    """Prompt tokens whose KV was found in the cache."""
    completion: int


@dataclass(frozen=True, slots=True)
class AnswerPart:
    """A piece of an answer. The counts come with the last part."""

    text: str = ""
    counts: TokenCounts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSampling:
    """How answers are sampled."""

    temperature: float = 0.7
    max_tokens: int = 512
    seed: int | None = None


class ChatBackend(Protocol):
    """Where answers come from. All methods run on one event loop."""

    async def open(self) -> str:
        """Get ready and return the model's name."""
        ...

    def answer(self, messages: Sequence[Message]) -> AsyncGenerator[AnswerPart, None]:
        """Yield the answer as it is produced; closing the generator early aborts the request."""
        ...

    async def close(self) -> None:
        """Give everything back."""


@dataclass(slots=True)
class Conversation:
    """The messages so far. A question without any answer leaves no trace."""

    system: str = ""
    turns: list[Message] = field(default_factory=list)

    def ask(self, question: str) -> list[Message]:
        """Return the messages to send for `question`. Mutates: nothing."""
        head = [{"role": "system", "content": self.system}] if self.system else []
        return [*head, *self.turns, {"role": "user", "content": question}]

    def record(self, question: str, answer: str) -> None:
        """Keep a question and its answer, which may have been cut short."""
        if answer:
            self.turns.append({"role": "user", "content": question})
            self.turns.append({"role": "assistant", "content": answer})

    def reset(self) -> None:
        """Forget all turns; the system message stays."""
        self.turns.clear()


@dataclass(slots=True)
class AnswerClock:
    """Times one answer. The caller passes the time in, in seconds."""

    asked_at: float
    first_at: float | None = None
    last_at: float = 0.0
    counts: TokenCounts | None = None

    def see(self, part: AnswerPart, now: float) -> None:
        """Take in a part that arrived at `now`."""
        if part.text:
            self.first_at = now if self.first_at is None else self.first_at
            self.last_at = now
        self.counts = part.counts or self.counts

    def describe(self) -> str:
        """Return one line: time to first token, speed, prompt tokens and how many were cached."""
        facts = []
        if self.first_at is not None:
            facts.append(f"ttft {(self.first_at - self.asked_at) * 1000:.0f} ms")
        if self.counts is not None:
            rate = self._tokens_per_s(self.counts.completion)
            facts.append(f"{rate:.1f} tok/s" if rate else f"{self.counts.completion} tokens")
            facts.append(f"{self.counts.prompt} prompt tokens, {self.counts.cached} from cache")
        return " · ".join(facts) or "no answer"

    def _tokens_per_s(self, num_tokens: int) -> float:
        # The first token ends the wait for it; the speed is that of the tokens after it.
        if self.first_at is None or self.last_at <= self.first_at or num_tokens < 2:
            return 0.0
        return (num_tokens - 1) / (self.last_at - self.first_at)
