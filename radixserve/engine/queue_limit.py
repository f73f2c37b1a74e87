"""How much may wait, and how long it will take until there is room."""

from __future__ import annotations

import math
from dataclasses import dataclass

MAX_RETRY_AFTER_S = 60
SMOOTHING = 0.1
"""Weight of the newest step in the running mean of the speed."""


@dataclass(slots=True)
class StepRate:
    """Tokens computed a second, as a running mean over steps."""

    tokens_per_s: float = 0.0

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Count a step that did something."""
        if num_tokens == 0 or seconds <= 0:
            return
        rate = num_tokens / seconds
        if self.tokens_per_s == 0:
            self.tokens_per_s = rate
        self.tokens_per_s += SMOOTHING * (rate - self.tokens_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimit:
    """Bounds of the waiting queue.

    Args:
        max_reqs: Most requests waiting.
        max_tokens: Most tokens of theirs; None is no bound.
    """

    max_reqs: int
    max_tokens: int | None = None

    def has_room(self, num_reqs: int, num_tokens: int) -> bool:
        """Whether one more may wait beside `num_reqs` with `num_tokens` tokens.

        The tokens that wait already are what counts: a long prompt is not shut out for ever.
        """
        return num_reqs < self.max_reqs and (
            self.max_tokens is None or num_tokens < self.max_tokens
        )


def retry_after_s(queued_tokens: int, rate: StepRate) -> int:
    """Return after how many seconds the queue will have been worked off, 1 to 60."""
    if rate.tokens_per_s == 0:
        return 1
    return min(MAX_RETRY_AFTER_S, max(1, math.ceil(queued_tokens / rate.tokens_per_s)))
