"""`DeviceSampler`: what `Sampler` does, for all rows at once and where the logits are.

    logits -> edits, grammar -> best token      greedy rows end here
                    -> weights exp((logit - best) / temperature)
                    -> 0 for what min_p, top_k, top_p drop, in that order
                    -> the first id whose cumulative weight exceeds u * total

Nothing waits for the device but the one copy of the tokens back to the host. The vocabulary is not
sorted: `device_filters` finds what top_k and top_p keep.

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
from radixserve.runtime.device_filters import MAX_NARROW, SPAN, keep_narrow, keep_wide, spans_of
from radixserve.runtime.sampler import NO_MASKS, RowError, is_greedy, row_error, uniform

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from radixserve.core.plan import SamplingState
    from radixserve.runtime.sampler import Mask
    from radixserve.types import TokenId


@dataclass(frozen=True, slots=True, eq=False)
class _Draw:
    """What some stochastic rows of a batch ask for, one number a row, on the device."""

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
    largest_top_k: int | None
    """Of rows that each have a top_k of at most `MAX_NARROW`; None for the others."""


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
        Complexity: O(R * vocab). Rows with a top_k of at most `MAX_NARROW` take one selection of
            their largest weights; others thirty passes for each of top_k and top_p that they have.
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
        for draw in _read_draws(states, rows.device):
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
    is_banned = _banned(list(given.values()), rows.device)
    kept = rows[index].masked_fill_(is_banned, NEVER)
    if rows is raw:  # nothing else is masked
        return rows.index_put((index,), kept)
    is_void = kept.amax(dim=1, keepdim=True) == NEVER
    lifted = raw[index].masked_fill_(is_banned, NEVER)
    return rows.index_put_((index,), torch.where(is_void, lifted, kept))


def _banned(masks: Sequence[Mask], device: torch.device) -> Tensor:
    """Return which ids the masks do not allow, [G, vocab] bool; they cross packed, a bit an id."""
    packed = np.stack([np.packbits(mask, bitorder="little") for mask in masks])
    octets = to_device(torch.from_numpy(packed), device)[:, :, None]
    places = torch.arange(8, dtype=torch.uint8, device=device)
    bits = (octets >> places).bitwise_and_(1) == 0
    return bits.flatten(1)[:, : len(masks[0])]


def _read_draws(states: Sequence[SamplingState], device: torch.device) -> list[_Draw]:
    """Return what the rows with a temperature ask for: those with a small top_k, and the others."""
    drawn = [(row, state) for row, state in enumerate(states) if not is_greedy(state.params)]
    narrow = [(row, state) for row, state in drawn if 0 < state.params.top_k <= MAX_NARROW]
    wide = [(row, state) for row, state in drawn if not 0 < state.params.top_k <= MAX_NARROW]
    largest = max((state.params.top_k for _, state in narrow), default=None)
    draws = [_read_draw(narrow, device, largest_top_k=largest)] if narrow else []
    return [*draws, _read_draw(wide, device, largest_top_k=None)] if wide else draws


def _read_draw(
    drawn: Sequence[tuple[int, SamplingState]], device: torch.device, *, largest_top_k: int | None
) -> _Draw:
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
        largest_top_k=largest_top_k,
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
    """Return the token of each stochastic row, [S] int64; any in range where `best` is not finite.

    The weights of such a row may be NaN: no row looks at another's.
    """
    weights = _weights(rows, best, draw)
    if draw.min_p is not None:
        weights.masked_fill_(weights < draw.min_p, 0.0)
    if draw.largest_top_k is None:
        keep_wide(weights, draw.top_k, draw.top_p)
    else:
        assert draw.top_k is not None
        keep_narrow(weights, draw.top_k, draw.top_p, largest=draw.largest_top_k)
    return _pick(weights, draw.u).clamp_(max=rows.shape[1] - 1)


def _weights(rows: Tensor, best: Tensor, draw: _Draw) -> Tensor:
    """Return each id's weight relative to the best one, which is 1; 0 beyond the last id.

    Returns: [S, num_spans * SPAN], float32.
    """
    num_drawn, vocab_len = len(draw.rows), rows.shape[1]
    if num_drawn < len(rows):
        rows, best = rows[draw.rows], best[draw.rows]
    exponents = (rows - best[:, None]).div_(draw.temperatures)
    weights = rows.new_zeros(num_drawn, -(-vocab_len // SPAN) * SPAN)
    torch.exp(exponents, out=weights[:, :vocab_len])
    return weights


def _pick(weights: Tensor, u: Tensor) -> Tensor:
    """Return the first id whose cumulative weight exceeds `u` of the total, [S] int64.

    An id of weight 0 is never picked. Sums of spans come first: a running sum over a whole
    vocabulary in float64 would take twice the memory of the logits.

    Args:
        weights: [S, num_spans * SPAN], float32, at least one of each row above 0.
        u: [S, 1], float64, in [0, 1).
    """
    spans = spans_of(weights)
    mass = spans.sum(dim=2).cumsum(dim=1, dtype=torch.float64)
    target = u * mass[:, -1:]
    span = _first_above(mass, target)
    before = torch.where(span > 0, mass.gather(1, (span - 1).clamp_(min=0)), 0.0)
    inside = spans.gather(1, span[:, :, None].expand(-1, 1, SPAN))[:, 0]
    place = _first_above(inside.cumsum(dim=1, dtype=torch.float64), target - before)
    return (span * SPAN + place)[:, 0]


def _first_above(mass: Tensor, bound: Tensor) -> Tensor:
    """Return the first place above `bound`, [S, 1]; where rounding leaves none, the last that
    grows; any in range where a sum is not a number."""
    last = mass[:, -1:]
    bound = torch.minimum(bound, torch.nextafter(last, torch.zeros_like(last)))
    return torch.searchsorted(mass, bound, right=True).clamp_(max=mass.shape[1] - 1)
