"""Beam search as pure decisions: which sequences go on, which have ended, and when to stop.

    beams     the `width` best open sequences, best first
    tops      for each of them its likeliest next tokens
      |  candidates: every (beam, token), by the sum of log-probabilities, best first
      |     that end (a stop token, or the last allowed token), among the first `width`: finished
      |     that do not end: the first `width` are the next beams
    finished  the `width` best ended sequences, by sum / length ** length_penalty

The same rules as transformers' `_beam_search` (v5), so that both give the same sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from radixserve.types import FinishReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.types import TokenId

    Tops: TypeAlias = Sequence[tuple[TokenId, float]]

EarlyStopping: TypeAlias = Literal["never"] | bool
"""True: stop as soon as `width` sequences have ended. False: when the best open one, at its present
length, is no better than the worst ended one. never: when it cannot become better at any length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamParams:
    """What a beam search is asked for."""

    width: int
    max_tokens: int
    stop_token_ids: frozenset[TokenId] = frozenset()
    min_tokens: int = 0
    length_penalty: float = 1.0
    """Exponent of the length by which a sum of log-probabilities is divided: above 0 favours long
    sequences."""
    early_stopping: EarlyStopping = False

    @property
    def num_candidates(self) -> int:
        """Candidates that are looked at: even if all stop tokens come first, `width` go on."""
        return max(2, 1 + len(self.stop_token_ids)) * self.width


@dataclass(frozen=True, slots=True)
class Beam:
    """One open sequence."""

    tokens: tuple[TokenId, ...]
    logprob: float
    """Sum over its tokens."""
    parent: int
    """Place among the beams of the step before."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One sequence that has ended."""

    tokens: tuple[TokenId, ...]
    """With the stop token, if one ended it."""
    logprob: float
    score: float
    """`logprob / len(tokens) ** length_penalty`."""
    finish_reason: FinishReason


class Beams:
    """The state of one search. Starts with the empty sequence."""

    def __init__(self, params: BeamParams) -> None:
        self.params = params
        self.open: list[Beam] = [Beam((), 0.0, 0)]
        self.finished: list[Hypothesis] = []
        """Best first, at most `width`."""
        self.is_done = False

    def __repr__(self) -> str:
        return f"<Beams {len(self.open)} open, {len(self.finished)} finished>"

    def advance(self, tops: Sequence[Tops]) -> None:
        """Go on by one token.

        Args:
            tops: For each open beam at least `num_candidates` next tokens (or the whole
                vocabulary) with their log-probabilities.
        Mutates: `open`, `finished`, `is_done`.
        Complexity: O(width * num_candidates * log).
        """
        candidates = self._candidates(tops)
        ends = [self._ending(beam) for beam in candidates]
        new = [
            self._hypothesis(beam, reason)
            for beam, reason in zip(candidates[: self.params.width], ends, strict=False)
            if reason is not None
        ]
        is_full = len(self.finished) == self.params.width
        if not (is_full and self.params.early_stopping is True):
            ranked = sorted([*self.finished, *new], key=lambda one: -one.score)
            self.finished = ranked[: self.params.width]
        going_on = [beam for beam, reason in zip(candidates, ends, strict=True) if reason is None]
        self.open = going_on[: self.params.width]
        self.is_done = not self.open or not self._can_improve()

    def _candidates(self, tops: Sequence[Tops]) -> list[Beam]:
        found = [
            (beam.logprob + logprob, place, token)
            for place, (beam, top) in enumerate(zip(self.open, tops, strict=True))
            for token, logprob in top
            if self._may_follow(beam, token)
        ]
        found.sort(key=lambda one: (-one[0], one[1], one[2]))
        return [
            Beam((*self.open[place].tokens, token), total, place)
            for total, place, token in found[: self.params.num_candidates]
        ]

    def _may_follow(self, beam: Beam, token: TokenId) -> bool:
        is_stop = token in self.params.stop_token_ids
        return not is_stop or len(beam.tokens) + 1 > self.params.min_tokens

    def _ending(self, beam: Beam) -> FinishReason | None:
        if beam.tokens[-1] in self.params.stop_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(beam.tokens) >= self.params.max_tokens else None

    def _hypothesis(self, beam: Beam, reason: FinishReason) -> Hypothesis:
        score = self._score(beam.logprob, len(beam.tokens))
        return Hypothesis(beam.tokens, beam.logprob, score, reason)

    def _score(self, logprob: float, length: int) -> float:
        return float(logprob / length**self.params.length_penalty)

    def _can_improve(self) -> bool:
        """Whether an open beam may still end better than the worst finished one."""
        params = self.params
        if len(self.finished) < params.width:
            return True
        if params.early_stopping is True:
            return False
        best = self.open[0]
        length = len(best.tokens)
        if params.early_stopping == "never" and params.length_penalty > 0:
            length = params.max_tokens
        return self._score(best.logprob, length) > self.finished[-1].score
