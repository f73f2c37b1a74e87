"""What answers requests, and what one request gave."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.bench.dialogue import Prompt


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """What a server says it has counted; None where it does not say."""

    prompt: int | None = None
    cached: int | None = None
    output: int | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request gave no whole answer."""

    kind: str
    """Few different ones, so that they can be counted: HTTP 429, TimeoutError."""
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one request gave. Times are in seconds from when it was sent."""

    name: str
    text: str = ""
    token_ids: tuple[int, ...] = ()
    counts: TokenCounts = TokenCounts()
    chunk_times: tuple[float, ...] = ()
    """When each piece of output came."""
    latency_s: float = 0.0
    """Until the answer was complete."""
    failure: Failure | None = None

    @property
    def output_tokens(self) -> int:
        """As the server counts them, else as ids came, else as pieces came."""
        return self.counts.output or len(self.token_ids) or len(self.chunk_times)

    @property
    def prompt_tokens(self) -> int:
        """As the server counts them, 0 if it does not say."""
        return self.counts.prompt or 0

    @property
    def ttft_s(self) -> float | None:
        """Until the first output."""
        return self.chunk_times[0] if self.chunk_times else None

    @property
    def tpot_s(self) -> float | None:
        """Mean per output token after the first; None for a single token."""
        if len(self.chunk_times) < 2 or self.output_tokens < 2:
            return None
        return (self.chunk_times[-1] - self.chunk_times[0]) / (self.output_tokens - 1)

    @property
    def gaps_s(self) -> list[float]:
        """Between pieces of output that came one after the other."""
        return [after - before for before, after in pairwise(self.chunk_times)]


class Target(Protocol):
    """Answers requests."""

    async def send(self, name: str, prompt: Prompt, output_len: int) -> Outcome:
        """Return what the request gave; failures are outcomes, not exceptions."""
        ...


@dataclass(slots=True)
class Stopwatch:
    """Takes the times of one request while it runs. Made when the request is sent."""

    name: str
    started_at: float = field(default_factory=time.perf_counter)
    _texts: list[str] = field(default_factory=list)
    _token_ids: list[int] = field(default_factory=list)
    _chunk_times: list[float] = field(default_factory=list)

    def chunk(self, text: str, token_ids: Sequence[int] = ()) -> None:
        """Note that output has come; an empty piece is none."""
        if not text and not token_ids:
            return
        self._chunk_times.append(time.perf_counter() - self.started_at)
        self._texts.append(text)
        self._token_ids.extend(token_ids)

    def stop(self, counts: TokenCounts, failure: Failure | None = None) -> Outcome:
        """Return the outcome. An answer without output is a failure."""
        if failure is None and not self._chunk_times:
            failure = Failure("no output", "the answer ended without any output")
        return Outcome(
            name=self.name,
            text="".join(self._texts),
            token_ids=tuple(self._token_ids),
            counts=counts,
            chunk_times=tuple(self._chunk_times),
            latency_s=time.perf_counter() - self.started_at,
            failure=failure,
        )
