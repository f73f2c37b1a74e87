"""When things happened to one request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Timing:
    """Moments on the engine's clock, in seconds."""

    submitted_at: float
    first_token_at: float | None = None
    last_token_at: float | None = None
    num_tokens: int = 0

    def saw(self, num_tokens: int, now: float) -> None:
        """Note that `num_tokens` output tokens came at `now`."""
        if num_tokens == 0:
            return
        if self.first_token_at is None:
            self.first_token_at = now
        self.last_token_at = now
        self.num_tokens += num_tokens

    @property
    def ttft_s(self) -> float | None:
        """From submission to the first output token."""
        return None if self.first_token_at is None else self.first_token_at - self.submitted_at

    @property
    def tpot_s(self) -> float | None:
        """Mean time between output tokens; None below two tokens."""
        if self.first_token_at is None or self.last_token_at is None or self.num_tokens < 2:
            return None
        return (self.last_token_at - self.first_token_at) / (self.num_tokens - 1)

    @property
    def e2e_s(self) -> float | None:
        """From submission to the last output token."""
        return None if self.last_token_at is None else self.last_token_at - self.submitted_at
