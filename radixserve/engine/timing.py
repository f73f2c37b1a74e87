"""When things happened to one request.

submitted ---- queue ----> started --- prefill ---> first token --- decode ---> last token
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Timing:
    """Moments on the engine's clock, in seconds."""

    submitted_at: float
    started_at: float | None = None
    """When the first step that computed something for it was planned."""
    first_token_at: float | None = None
    last_token_at: float | None = None
    num_tokens: int = 0

    def saw(self, num_tokens: int, now: float) -> float | None:
        """Note that `num_tokens` output tokens came at `now`.

        Returns: the time since the tokens before them, divided among them; None for the first.
        """
        if num_tokens == 0:
            return None
        before = self.last_token_at
        self.last_token_at = now
        self.num_tokens += num_tokens
        if before is None:
            self.first_token_at = now
            return None
        return (now - before) / num_tokens

    @property
    def queue_s(self) -> float | None:
        """From submission to the first step."""
        return None if self.started_at is None else self.started_at - self.submitted_at

    @property
    def prefill_s(self) -> float | None:
        """From the first step to the first output token."""
        if self.started_at is None or self.first_token_at is None:
            return None
        return self.first_token_at - self.started_at

    @property
    def decode_s(self) -> float | None:
        """From the first output token to the last."""
        if self.first_token_at is None or self.last_token_at is None:
            return None
        return self.last_token_at - self.first_token_at

    @property
    def ttft_s(self) -> float | None:
        """From submission to the first output token."""
        return None if self.first_token_at is None else self.first_token_at - self.submitted_at

    @property
    def tpot_s(self) -> float | None:
        """Mean time between output tokens; None below two tokens."""
        if self.num_tokens < 2 or self.decode_s is None:
            return None
        return self.decode_s / (self.num_tokens - 1)

    @property
    def e2e_s(self) -> float | None:
        """From submission to the last output token."""
        return None if self.last_token_at is None else self.last_token_at - self.submitted_at
