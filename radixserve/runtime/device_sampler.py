"""`DeviceSampler`: what `Sampler` does, for all rows at once and where the logits are.

    logits -> edits, grammar -> best token      greedy rows end here
                    -> weights exp((logit - best) / temperature)
                    -> 0 for what min_p, top_k, top_p drop, in that order
                    -> the first id whose cumulative weight exceeds u * total

Nothing is sorted, and nothing waits for the device but the one copy of the tokens back to the host.
What top_k and top_p keep is all above some weight, and of those equal to it the lowest ids. That
weight is found by bisection over the bit patterns of float32, which are ordered as the weights are:
thirty passes, whatever the vocabulary looks like.

`u` is the host's, so that a row's token is the one that `Sampler` would choose, but where a sum
rounds to the other side of u * total.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from radixserve.device.transfer import host_buffer, make_event, to_device
from radixserve.runtime.device_edits import NEVER, edit_rows
from radixserve.runtime.sampler import NO_MASKS, RowError, is_greedy, row_error, uniform

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from radixserve.core.plan import SamplingState
    from radixserve.runtime.sampler import Mask
    from radixserve.types import TokenId

SPAN = 256
"""Weights that are summed together before the one to pick is searched among them."""

_ONE_BITS = 0x3F800000
"""1.0 as the bits of a float32: the largest weight of every row."""


@dataclass(frozen=True, slots=True, eq=False)
class _Draw:
    """What the stochastic rows of a batch ask for, one number a row, on the device."""

    rows: Tensor
    """[S], int64: which rows they are."""
    temperatures: Tensor
    """[S, 1], float32."""
    u: Tensor
    """[S, 1], float64."""
    min_p: Tensor | None
    """[S, 1], float32; None if no row has one, as for the next two."""
    top_k: Tensor | None
    """[S, 1], float64; infinite where off."""
    top_p: Tensor | None
    """[S, 1], float64; infinite where off."""


class DeviceSampler:
    """Chooses one token a row, batch-wise, on any device. Holds no state.

    Args:
        vocab_limit: Ids from here on are never chosen: rows that only pad the output head.
    """

    def __init__(self, vocab_limit: int) -> None:
        self.vocab_limit = vocab_limit

    def sample(
        self,
        logits: Tensor,
        states: Sequence[SamplingState],
        masks: Mapping[int, Mask | str] = NO_MASKS,
    ) -> list[TokenId | RowError]:
        """Return the next token of each row, or why the row has none; see `Sampler.sample`.

        Args:
            logits: [R, vocab], float32.
            states: R of them, each with a seed unless it is greedy.
            masks: Row -> which ids its grammar allows, one at least; or why it allows none.
        Raises:
            InvariantError: a row with a temperature has no seed.
        Mutates: nothing.
        Complexity: O(R * vocab), with thirty passes over the rows that have top_k or top_p.
        """
        return self.begin(logits, states, masks).result()

    def begin(
        self,
        logits: Tensor,
        states: Sequence[SamplingState],
        masks: Mapping[int, Mask | str] = NO_MASKS,
    ) -> TokensUnderWay:
        """Queue all of it on the device and return without waiting; as `sample` otherwise."""
        if not states:
            return TokensUnderWay(logits.new_empty(0, dtype=torch.int64), logits[:0, 0], masks)
        raw = logits.detach()[:, : self.vocab_limit]
        rows = _masked(edit_rows(raw, states), raw, masks)
        best, tokens = rows.max(dim=1)  # the first of equals, and a NaN before every number
        draw = _read_draw(states, rows.device)
        if draw is not None:
            tokens[draw.rows] = _drawn(rows, best, draw)
        return TokensUnderWay(tokens, best, masks)


class TokensUnderWay:
    """Tokens on their way to the host.

    Args:
        tokens: [R], int64, on the device.
        best: [R]: each row's best logit.
        masks: As given to the sampler.
    """

    def __init__(self, tokens: Tensor, best: Tensor, masks: Mapping[int, Mask | str]) -> None:
        self.tokens = tokens
        self._masks = masks
        found = torch.stack((tokens.double(), best.double()))
        self._host = host_buffer(found.shape, found.dtype, found.device)
        self._host.copy_(found, non_blocking=True)
        self._copied = make_event(found.device)
        self._copied.record()

    def result(self) -> list[TokenId | RowError]:
        """Wait for the tokens and return them, or why a row has none."""
        self._copied.synchronize()
        tokens, best = self._host.tolist()
        return [
            self._one(row, token, score)
            for row, (token, score) in enumerate(zip(tokens, best, strict=True))
        ]

    def _one(self, row: int, token: float, best: float) -> TokenId | RowError:
        mask = self._masks.get(row)
        if isinstance(mask, str):
            return RowError(mask)
        return int(token) if np.isfinite(best) else row_error(best)


def _masked(rows: Tensor, raw: Tensor, masks: Mapping[int, Mask | str]) -> Tensor:
    """Return the logits that the grammars allow; where other masks leave none, they are lifted."""
    given = {row: mask for row, mask in masks.items() if not isinstance(mask, str)}
    if not given:
        return rows
    index = to_device(torch.tensor(list(given)), rows.device)
    allowed = to_device(torch.from_numpy(np.stack(list(given.values()))), rows.device)
    kept = rows[index].masked_fill(~allowed, NEVER)
    is_void = (kept == NEVER).all(dim=1, keepdim=True)
    lifted = raw[index].masked_fill(~allowed, NEVER)
    result = rows.clone() if rows is raw else rows
    result[index] = torch.where(is_void, lifted, kept)
    return result


def _read_draw(states: Sequence[SamplingState], device: torch.device) -> _Draw | None:
    """Return what the rows with a temperature ask for; None if there are none."""
    drawn = [(row, state) for row, state in enumerate(states) if not is_greedy(state.params)]
    if not drawn:
        return None
    numbers = np.array([_numbers_of(row, state) for row, state in drawn])
    copied = to_device(torch.from_numpy(numbers), device)
    rows, temperatures, min_p, top_k, top_p, u = torch.split(copied, 1, dim=1)
    return _Draw(
        rows=rows[:, 0].long(),
        temperatures=temperatures.float(),
        u=u,
        min_p=min_p.float() if numbers[:, 2].any() else None,
        top_k=top_k if np.isfinite(numbers[:, 3]).any() else None,
        top_p=top_p if np.isfinite(numbers[:, 4]).any() else None,
    )


def _numbers_of(row: int, state: SamplingState) -> tuple[float, ...]:
    params = state.params
    return (
        row,
        params.temperature,
        params.min_p,
        params.top_k if params.top_k > 0 else np.inf,
        params.top_p if params.top_p < 1 else np.inf,
        uniform(state),
    )


def _drawn(rows: Tensor, best: Tensor, draw: _Draw) -> Tensor:
    """Return the token of each stochastic row, [S] int64; any at all where `best` is not finite."""
    logits, best = rows[draw.rows], best[draw.rows][:, None]
    weights = ((logits - best) / draw.temperatures).exp_()
    weights.nan_to_num_(nan=1.0)  # of a row that fails: it must not break the search for the others
    if draw.min_p is not None:
        weights.masked_fill_(weights < draw.min_p, 0.0)
    if draw.top_k is not None:
        weights = _keep_largest(weights, torch.ones_like(weights), draw.top_k)
    if draw.top_p is not None:
        total = weights.sum(dim=1, keepdim=True, dtype=torch.float64)
        weights = _keep_largest(weights, weights, draw.top_p * total)
    return _pick(weights, draw.u)


def _keep_largest(weights: Tensor, measure: Tensor, target: Tensor) -> Tensor:
    """Return the weights with all but the largest set to 0: as few as reach `target`, one at least.

    Of equal weights the lower ids stay.

    Args:
        weights: [S, vocab], float32, from 0 to 1, which is there in every row.
        measure: [S, vocab], float32, not negative: what is summed; equal for equal weights.
        target: [S, 1], float64.
    """
    bound, above = _bound(weights, measure, target)
    is_tie = weights == bound
    each = torch.where(is_tie, measure, 0.0).amax(dim=1, keepdim=True).double()
    num_ties = ((target - above) / each).ceil().clamp(min=1)
    num_ties = torch.where(each > 0, num_ties, torch.inf)
    is_kept = (weights > bound) | (is_tie & (is_tie.cumsum(dim=1, dtype=torch.int32) <= num_ties))
    return torch.where(is_kept, weights, 0.0)


def _bound(weights: Tensor, measure: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the least weight above which `target` is not reached, and what is reached above it.

    Both are [S, 1], float32 and float64.
    """
    high = torch.full_like(target, _ONE_BITS, dtype=torch.int32)
    low = torch.full_like(high, -1)  # beyond the least: no weight is negative
    for _ in range(_ONE_BITS.bit_length()):
        middle = low + (high - low).div(2, rounding_mode="floor").clamp(min=1)
        middle = torch.minimum(middle, high)
        above = _sum_above(weights, measure, middle.view(torch.float32))
        is_short = (above < target) | (above <= 0)
        high, low = torch.where(is_short, middle, high), torch.where(is_short, low, middle)
    bound = high.view(torch.float32)
    return bound, _sum_above(weights, measure, bound)


def _sum_above(weights: Tensor, measure: Tensor, bound: Tensor) -> Tensor:
    above = torch.where(weights > bound, measure, 0.0)
    return above.sum(dim=1, keepdim=True, dtype=torch.float64)


def _pick(weights: Tensor, u: Tensor) -> Tensor:
    """Return the first id whose cumulative weight exceeds `u` of the total, [S] int64.

    An id of weight 0 is never picked. Sums of spans come first: a running sum over a whole
    vocabulary in float64 would take twice the memory of the logits.

    Args:
        weights: [S, vocab], float32, at least one of each row above 0.
        u: [S, 1], float64, in [0, 1).
    """
    num_rows, vocab_len = weights.shape
    num_spans = -(-vocab_len // SPAN)
    padded = torch.nn.functional.pad(weights, (0, num_spans * SPAN - vocab_len))
    spans = padded.view(num_rows, num_spans, SPAN)
    mass = spans.sum(dim=2, dtype=torch.float64).cumsum(dim=1)
    target = u * mass[:, -1:]
    span = _first_above(mass, target)
    before = torch.where(span > 0, mass.gather(1, (span - 1).clamp(min=0)), 0.0)
    inside = spans.gather(1, span[:, :, None].expand(-1, 1, SPAN))[:, 0]
    place = _first_above(inside.cumsum(dim=1, dtype=torch.float64), target - before)
    return (span * SPAN + place)[:, 0]


def _first_above(mass: Tensor, bound: Tensor) -> Tensor:
    """Return the first place above `bound`, [S, 1]; where rounding leaves none, the last that
    grows."""
    last = mass[:, -1:]
    bound = torch.minimum(bound, torch.nextafter(last, torch.zeros_like(last)))
    return torch.searchsorted(mass, bound, right=True)
