"""`NativeSampler`: what `Sampler` does, a batch at a time in the native kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from radixserve.kernels import NOT_FINITE, NOTHING_LEFT, DrawRules, View, draw
from radixserve.runtime.logit_edits import has_edits
from radixserve.runtime.sampler import (
    NO_MASKS,
    HostSampler,
    RowError,
    edited_row,
    is_greedy,
    row_error,
    uniform,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from radixserve.core.plan import SamplingState
    from radixserve.runtime.sampler import Mask
    from radixserve.types import TokenId

_REASONS = {NOTHING_LEFT: row_error(-np.inf), NOT_FINITE: row_error(np.nan)}


class NativeSampler(HostSampler):
    """Chooses by the rules of `Sampler`, on all threads.

    A row's token depends on that row alone. Where a draw falls between two tokens to rounding, it
    may go to another one than with `Sampler`.
    """

    def sample(
        self,
        logits: Tensor,
        states: Sequence[SamplingState],
        masks: Mapping[int, Mask | str] = NO_MASKS,
    ) -> list[TokenId | RowError]:
        """Return the next token of each row, or why the row has none; see `HostSampler`.

        Complexity: O(R * vocab). Rows that are masked, or changed by their parameters, are copied.
        """
        chosen: dict[int, TokenId | RowError] = {
            place: RowError(mask) for place, mask in masks.items() if isinstance(mask, str)
        }
        places = [place for place in range(len(states)) if place not in chosen]
        plain = [p for p in places if p not in masks and not has_edits(states[p])]
        edited = [p for p in places if p in masks or has_edits(states[p])]
        if plain:
            rows = logits.contiguous() if len(plain) == len(states) else logits[plain]
            chosen.update(zip(plain, self._draw(rows, [states[p] for p in plain]), strict=True))
        if edited:
            rows = self._edited(logits, states, masks, edited)
            chosen.update(zip(edited, self._draw(rows, [states[p] for p in edited]), strict=True))
        return [chosen[place] for place in range(len(states))]

    def _edited(
        self,
        logits: Tensor,
        states: Sequence[SamplingState],
        masks: Mapping[int, Mask | str],
        places: Sequence[int],
    ) -> Tensor:
        """Return the logits of some rows as their requests change them."""
        whole = logits[:, : self.vocab_limit].numpy()
        rows = np.empty((len(places), whole.shape[1]), dtype=np.float32)
        for row, place in zip(rows, places, strict=True):
            mask = masks.get(place)
            assert not isinstance(mask, str)
            row[:] = edited_row(whole[place], states[place], mask)
        return torch.from_numpy(rows)

    def _draw(self, rows: Tensor, states: Sequence[SamplingState]) -> list[TokenId | RowError]:
        params = [state.params for state in states]
        ids = np.empty(len(states), dtype=np.int64)
        u = [0.0 if is_greedy(state.params) else uniform(state) for state in states]
        rules = DrawRules(
            temperature=View(np.array([p.temperature for p in params], dtype=np.float32)),
            min_p=View(np.array([p.min_p for p in params], dtype=np.float32)),
            top_k=View(np.array([p.top_k for p in params], dtype=np.int64)),
            top_p=View(np.array([p.top_p for p in params])),
            u=View(np.array(u)),
        )
        limit = min(self.vocab_limit, rows.shape[1])
        draw(View(rows), rows=len(states), limit=limit, rules=rules, out_ids=View(ids))
        return [_REASONS.get(token, token) for token in ids.tolist()]
