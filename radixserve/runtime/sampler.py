"""`Sampler`: from logits to the next token of each row.

    logits -> edits, grammar -> best token      greedy ends here
                    -> weights exp((logit - best) / temperature)
                    -> survivors of min_p, top_k, top_p, in that order, ascending by id
                    -> the first survivor whose cumulative weight exceeds u * total

`u` in [0, 1) is a function of (seed, output_len) alone, and every row is computed by itself, so a
request's tokens never depend on what else is in the batch. Equal weights go to the lower id.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import torch

from radixserve.errors import InvariantError
from radixserve.runtime.logit_edits import edit_logits, has_edits
from radixserve.runtime.philox import WORD, first_word

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from radixserve.core.plan import SamplingState
    from radixserve.types import SamplingParams, TokenId

    Floats: TypeAlias = NDArray[np.float32]
    Ids: TypeAlias = NDArray[np.int64]
    Mask: TypeAlias = NDArray[np.bool_]

NO_MASKS: Mapping[int, Mask | str] = MappingProxyType({})
"""No row has a grammar."""

MIN_TEMPERATURE = 1e-5
"""Temperatures below this are greedy."""

_NUCLEUS_HEADS = (1024, 8192)
"""How many of the largest weights are sorted for top_p before the whole vocabulary is."""

_SPAN = 256
"""Weights that are summed together before the one to pick is searched among them."""


@dataclass(frozen=True, slots=True)
class RowError:
    """A row that has no next token; the other rows of the batch are not touched by it."""

    message: str
    """A `RequestFault` where the request is the cause."""


class ChosenTokens(Protocol):
    """What a sampler chose, perhaps still on its way to the host."""

    @property
    def tokens(self) -> Tensor:
        """[R], int64, where the logits are, before they are on the host; any id in range for a row
        that has none."""
        ...

    def result(self) -> list[TokenId | RowError]:
        """Wait for the tokens and return them, or why a row has none."""
        ...


class StepSampler(Protocol):
    """Whatever chooses the next tokens of a step; `Sampler.sample` is its specification."""

    vocab_limit: int

    def begin(
        self,
        logits: Tensor,
        states: Sequence[SamplingState],
        masks: Mapping[int, Mask | str] = ...,
    ) -> ChosenTokens:
        """Choose the next token of each row; return without waiting for a device."""
        ...


@dataclass(frozen=True, slots=True)
class KnownTokens:
    """Tokens that were chosen on the host."""

    values: Sequence[TokenId | RowError]

    @property
    def tokens(self) -> Tensor:
        """See `ChosenTokens`."""
        return torch.tensor([0 if isinstance(v, RowError) else v for v in self.values]).long()

    def result(self) -> list[TokenId | RowError]:
        """Return them."""
        return list(self.values)


class HostSampler(ABC):
    """Chooses one token a row, at once. Holds no state: the same input gives the same tokens.

    Args:
        vocab_limit: Ids from here on are never chosen: rows that only pad the output head.
    """

    def __init__(self, vocab_limit: int) -> None:
        self.vocab_limit = vocab_limit

    def begin(
        self,
        logits: Tensor,
        states: Sequence[SamplingState],
        masks: Mapping[int, Mask | str] = NO_MASKS,
    ) -> KnownTokens:
        """Choose the tokens, as `sample` does."""
        return KnownTokens(self.sample(logits, states, masks))

    @abstractmethod
    def sample(
        self,
        logits: Tensor,
        states: Sequence[SamplingState],
        masks: Mapping[int, Mask | str] = NO_MASKS,
    ) -> list[TokenId | RowError]:
        """Return the next token of each row, or why the row has none.

        Args:
            logits: [R, vocab], float32.
            states: R of them, each with a seed unless it is greedy.
            masks: Row -> which ids its grammar allows, one at least; or why it allows none.
        Raises:
            InvariantError: a row with a temperature has no seed.
        Mutates: nothing.
        Complexity: O(R * vocab); a sort of the vocabulary only where thousands of tokens
            share `top_p`.
        """


class Sampler(HostSampler):
    """The specification, row by row in numpy."""

    def sample(
        self,
        logits: Tensor,
        states: Sequence[SamplingState],
        masks: Mapping[int, Mask | str] = NO_MASKS,
    ) -> list[TokenId | RowError]:
        """Return the next token of each row, or why the row has none; see `HostSampler`."""
        if not states:
            return []
        rows: Floats = logits.detach()[:, : self.vocab_limit].cpu().numpy()
        if not masks and all(is_greedy(s.params) and not has_edits(s) for s in states):
            return _take_best(rows)
        return [
            _choose(row, state, masks.get(place))
            for place, (row, state) in enumerate(zip(rows, states, strict=True))
        ]


def is_greedy(params: SamplingParams) -> bool:
    """Whether the likeliest token is taken, so that no seed is needed."""
    return params.temperature < MIN_TEMPERATURE


def _take_best(rows: Floats) -> list[TokenId | RowError]:
    tokens = rows.argmax(axis=1)  # the first of equals, and a NaN before every number
    best = rows[np.arange(len(rows)), tokens]
    chosen: list[TokenId | RowError] = [*tokens.tolist()]
    for row in np.flatnonzero(~np.isfinite(best)):
        chosen[row] = row_error(best[row])
    return chosen


def _choose(row: Floats, state: SamplingState, mask: Mask | str | None) -> TokenId | RowError:
    params = state.params
    if isinstance(mask, str):
        return RowError(mask)
    row = edited_row(row, state, mask)
    token = int(row.argmax())
    best = row[token]
    if not np.isfinite(best):
        return row_error(best)
    if is_greedy(params):
        return token
    # The best logit is subtracted before the division: no temperature can overflow upwards.
    with np.errstate(over="ignore"):
        weights: Floats = np.exp((row - best) / np.float32(params.temperature))
    ids = _survivors(weights, params)
    place = pick(_of(weights, ids), uniform(state))
    return place if ids is None else int(ids[place])


def edited_row(row: Floats, state: SamplingState, mask: Mask | None) -> Floats:
    """Return the logits as the parameters change them, and only those that the grammar allows.

    The grammar wins over the other masks: where they leave nothing of it, they are lifted.
    """
    edited = edit_logits(row, state) if has_edits(state) else row
    if mask is None:
        return edited
    allowed: Floats = np.where(mask, edited, -np.inf)
    return np.where(mask, row, -np.inf) if allowed.max() == -np.inf else allowed


def row_error(best: float) -> RowError:
    """Return why a row whose largest logit is `best`, which is no finite number, has no token."""
    if best == -np.inf:
        return RowError("no token is left to choose: all of them are masked out")
    return RowError("the model produced logits that are not finite numbers")


def _survivors(weights: Floats, params: SamplingParams) -> Ids | None:
    """Return the ids that may be drawn, ascending; None if all may.

    `weights` are relative to the largest, which is 1.
    """
    ids: Ids | None = None
    if params.min_p > 0:
        ids = np.flatnonzero(weights >= params.min_p)
    if params.top_k > 0:
        ids = _keep_largest(ids, weights, params.top_k)
    if params.top_p < 1:
        ids = _keep_largest(ids, weights, _nucleus_len(_of(weights, ids), params.top_p))
    return ids


def _of(weights: Floats, ids: Ids | None) -> Floats:
    return weights if ids is None else weights[ids]


def _keep_largest(ids: Ids | None, weights: Floats, count: int) -> Ids | None:
    """Return those of `ids` that have the `count` largest weights; the first of equals stay."""
    left = _of(weights, ids)
    if count >= len(left):
        return ids
    bound = np.partition(left, -count)[-count]
    is_kept = left > bound
    ties = np.flatnonzero(left == bound)
    is_kept[ties[: count - np.count_nonzero(is_kept)]] = True
    places = np.flatnonzero(is_kept)
    return places if ids is None else ids[places]


def _nucleus_len(weights: Floats, top_p: float) -> int:
    """Return the size of the smallest set of weights that reaches `top_p` of their sum."""
    target = top_p * weights.sum(dtype=np.float64)
    for size in _NUCLEUS_HEADS:
        if size < len(weights):
            mass = _cumulate_down(np.partition(weights, -size)[-size:])
            if mass[-1] >= target:
                return int(np.searchsorted(mass, target)) + 1
    return int(np.searchsorted(_cumulate_down(weights), target)) + 1


def _cumulate_down(weights: Floats) -> NDArray[np.float64]:
    """Return the running sum from the largest weight to the smallest."""
    return np.cumsum(np.sort(weights)[::-1], dtype=np.float64)


def pick(weights: Floats, u: float) -> int:
    """Return the first place whose cumulative weight exceeds `u` of the total.

    A place of weight 0 is never picked, at either end of the range of `u`.

    Args:
        weights: At least one is above 0.
        u: In [0, 1).
    """
    # Sums of spans first: a running sum over a whole vocabulary is slow.
    spans = np.add.reduceat(weights, np.arange(0, len(weights), _SPAN), dtype=np.float64)
    mass = np.cumsum(spans)
    span = _first_above(mass, u * mass[-1])
    before = mass[span - 1] if span else 0.0
    inside = np.cumsum(weights[span * _SPAN : (span + 1) * _SPAN], dtype=np.float64)
    return span * _SPAN + _first_above(inside, u * mass[-1] - before)


def _first_above(mass: NDArray[np.float64], bound: float) -> int:
    """Return the first place above `bound`; where rounding leaves none, the last that grows."""
    bound = min(bound, np.nextafter(mass[-1], 0.0))
    return int(np.searchsorted(mass, bound, side="right"))


def uniform(state: SamplingState) -> float:
    """Return the row's number in [0, 1): block `output_len` of the seed's Philox stream.

    Raises:
        InvariantError: the request has no seed.
    """
    seed = state.params.seed
    if seed is None:
        raise InvariantError(0, "a request that samples has no seed")
    return (first_word(seed & WORD, state.output_len) >> 11) * 2.0**-53
