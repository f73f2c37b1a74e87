"""How likely a given text is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from radixserve.types import TokenId


@dataclass(frozen=True, slots=True)
class Score:
    """A text as a continuation, token by token; natural logarithms."""

    text: str
    token_ids: tuple[TokenId, ...]
    logprobs: tuple[float, ...]

    @property
    def total(self) -> float:
        """The logarithm of the text's probability."""
        return math.fsum(self.logprobs)

    @property
    def mean(self) -> float:
        """Per token."""
        return self.total / len(self.logprobs)
