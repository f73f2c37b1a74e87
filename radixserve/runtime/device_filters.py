"""What top_k and top_p leave of the weights of many rows at once, where the weights are.

What they keep is all above some weight, the bound, and of those equal to it the lowest ids.

    rows that have a top_k of at most MAX_NARROW    the bound is among the top_k largest weights
    all others                                      it is found by bisection, nothing is sorted

Which of the two ways a row goes is a matter of its own parameters, never of the other rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

SPAN = 256
"""Weights that are summed together, in float32, before the sums are, in float64."""

MAX_NARROW = 1024
"""The largest top_k for which so many weights of a row are sorted."""

_NUM_BITS = 30
"""Bits that a float32 from 0 to 1 needs; the two above them are 0. As integers they are ordered as
the numbers are."""

_LEAST = torch.finfo(torch.float64).tiny


def keep_narrow(weights: Tensor, top_k: Tensor, top_p: Tensor | None, *, largest: int) -> None:
    """Set to 0 what top_k, and then top_p, drop.

    Args:
        weights: [S, num_spans * SPAN], float32, from 0 to 1, which is there in every row.
        top_k: [S, 1], float64, from 1.
        top_p: [S, 1], float64; infinite where off.
        largest: Of `top_k`, as the host knows it.
    Mutates: `weights`.
    Complexity: O(S * vocab) in one selection and a few passes.
    """
    values = weights.topk(min(largest, weights.shape[1]), dim=1).values  # [S, K], falling
    count = top_k.clamp(max=values.shape[1]).long()
    if top_p is not None:
        places = torch.arange(values.shape[1], device=values.device)
        mass = values.masked_fill(places >= count, 0.0).cumsum(dim=1, dtype=torch.float64)
        count = torch.minimum(count, torch.searchsorted(mass, top_p * mass[:, -1:]) + 1)
    bound = values.gather(1, count - 1)
    _keep(weights, bound, count - (values > bound).sum(dim=1, keepdim=True))


def keep_wide(weights: Tensor, top_k: Tensor | None, top_p: Tensor | None) -> None:
    """Set to 0 what top_k, and then top_p, drop.

    Args:
        weights: [S, num_spans * SPAN], float32, from 0 to 1, which is there in every row.
        top_k: [S, 1], float64, from 1; infinite where off.
        top_p: [S, 1], float64; infinite where off.
    Mutates: `weights`.
    Complexity: O(S * vocab), with thirty passes for each of the two that is there.
    """
    if top_k is not None:
        bound, above = _bound(weights, None, top_k)
        _keep(weights, bound, top_k - above)
    if top_p is not None:
        target = (top_p * _sum(spans_of(weights))[:, 0]).clamp(min=_LEAST)
        bound, mass = _bound(weights, weights, target)
        # The target is above the mass, never at it: one tie at least, and all at a bound of 0.
        _keep(weights, bound, ((target - mass) / bound.double()).ceil())


def _keep(weights: Tensor, bound: Tensor, num_ties: Tensor) -> None:
    """Set to 0 all but what is above `bound`, and the first `num_ties` of what is equal to it."""
    is_tie = weights == bound
    is_kept = is_tie.cumsum(dim=1, dtype=torch.int32) <= num_ties
    weights.mul_(is_kept.logical_and_(is_tie).logical_or_(weights > bound))


def _bound(weights: Tensor, measure: Tensor | None, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the least weight above which `target` is not reached, and what is reached above it.

    Bisection asks for a sum that never grows with the bound, and rounding does not change that: as
    the bound rises, terms become 0 and the others stay, in the same places of the same sum, and
    the rounded sum of two numbers never grows if one of them falls (nor does a rounded copy).

    Args:
        weights: As above.
        measure: [S, num_spans * SPAN], not negative: what is summed of the weights above the
            bound; their number if None.
        target: [S, 1], float64, above 0: nothing at all never reaches it.
    Returns: [S, 1], float32, and [S, 1], float64.
    """
    spans = spans_of(weights)
    summed = None if measure is None else spans_of(measure)
    aim = target[:, :, None]
    bound = torch.full_like(aim, (1 << _NUM_BITS) - 1, dtype=torch.int32)  # above 1, so above all
    for bit in reversed(range(_NUM_BITS)):
        lower = bound - (1 << bit)
        is_short = _sum_above(spans, summed, lower.view(torch.float32)) < aim
        bound = torch.where(is_short, lower, bound)
    found = bound.view(torch.float32)
    return found[:, 0], _sum_above(spans, summed, found)[:, 0]


def _sum_above(spans: Tensor, measure: Tensor | None, bound: Tensor) -> Tensor:
    is_above = spans > bound
    return _sum(is_above.float() if measure is None else is_above * measure)


def spans_of(weights: Tensor) -> Tensor:
    """Return a view of weights [S, num_spans * SPAN] as [S, num_spans, SPAN]."""
    return weights.view(len(weights), -1, SPAN)


def _sum(spans: Tensor) -> Tensor:
    """Return the sum of each row, [S, 1, 1], float64.

    torch makes a whole copy in float64 before it sums float32 in float64; here only that of the
    spans' sums. Sums that are compared with one another all come from here.
    """
    return spans.sum(dim=2, keepdim=True).sum(dim=1, keepdim=True, dtype=torch.float64)
