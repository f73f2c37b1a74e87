"""`edit_logits` for a whole batch, where the logits are.

The host says which logits change and by how much; the device changes them, in the same order and
with the same roundings as `edit_logits` does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from radixserve.device.transfer import to_device
from radixserve.runtime.logit_edits import (
    completing,
    count_ids,
    has_edits,
    holds_stops_back,
    within,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from radixserve.core.plan import SamplingState

NEVER = float("-inf")


@dataclass(slots=True)
class _Points:
    """Places in the logits, and a number for each."""

    rows: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, row: int, ids: Sequence[int], values: Sequence[float]) -> None:
        self.rows += [row] * len(ids)
        self.ids += ids
        self.values += values

    def on(self, device: torch.device) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Return them as an index and its values, with one copy to the device each."""
        index = torch.tensor([self.rows, self.ids], dtype=torch.int64)
        values = torch.tensor(self.values, dtype=torch.float32)
        rows, ids = to_device(index, device)
        return (rows, ids), to_device(values, device)


def edit_rows(logits: Tensor, states: Sequence[SamplingState]) -> Tensor:
    """Return the logits as each row's parameters change them; they themselves stay.

    Args:
        logits: [R, vocab], float32.
        states: R of them.
    Returns: [R, vocab]; `logits` itself where nothing changes.
    """
    edited = {row: state for row, state in enumerate(states) if has_edits(state)}
    if not edited:
        return logits
    logits = logits.clone()
    _penalise(logits, edited)
    _add_bias(logits, edited)
    _keep_only(logits, edited)
    _ban(logits, edited)
    return logits


def _penalise(logits: Tensor, states: Mapping[int, SamplingState]) -> None:
    """Make what came before less likely: first by a factor, then by two differences."""
    repeated, present, frequent = _Points(), _Points(), _Points()
    for row, state in states.items():
        params = state.params
        if params.repetition_penalty != 1.0:
            seen, _ = count_ids(state.prompt_ids + state.output_ids, logits.shape[1])
            repeated.add(row, seen.tolist(), [params.repetition_penalty] * len(seen))
        if params.has_penalties:
            ids, counts = count_ids(state.output_ids, logits.shape[1])
            present.add(row, ids.tolist(), [params.presence_penalty] * len(ids))
            frequent.add(row, ids.tolist(), _products(params.frequency_penalty, counts))
    if repeated.ids:
        index, penalties = repeated.on(logits.device)
        values = logits[index]
        logits[index] = torch.where(values > 0, values / penalties, values * penalties)
    for points in (present, frequent):
        if points.ids:
            index, values = points.on(logits.device)
            logits[index] -= values


def _products(penalty: float, counts: NDArray[np.int64]) -> list[float]:
    products: list[float] = (np.float32(penalty) * counts.astype(np.float32)).tolist()
    return products


def _add_bias(logits: Tensor, states: Mapping[int, SamplingState]) -> None:
    points = _Points()
    for row, state in states.items():
        for token, bias in state.params.logit_bias:
            if token < logits.shape[1]:
                points.add(row, [token], [bias])
    if points.ids:
        index, values = points.on(logits.device)
        logits.index_put_(index, values, accumulate=True)


def _keep_only(logits: Tensor, states: Mapping[int, SamplingState]) -> None:
    """Mask all but the allowed ids and the stop ids, in the rows that name any."""
    points, limited = _Points(), []
    for row, state in states.items():
        allowed = state.params.allowed_token_ids
        if allowed is not None:
            kept = within(allowed | state.params.stop_token_ids, logits.shape[1])
            points.add(row, kept, [0.0] * len(kept))
            limited.append(row)
    if limited:
        (rows, ids), _ = points.on(logits.device)
        values = logits[rows, ids]
        logits[to_device(torch.tensor(limited), logits.device)] = NEVER
        logits[rows, ids] = values


def _ban(logits: Tensor, states: Mapping[int, SamplingState]) -> None:
    """Mask the stop ids that come too early, and what would complete a sequence not to come."""
    points = _Points()
    for row, state in states.items():
        banned = set(completing(state))
        if holds_stops_back(state):
            banned |= state.params.stop_token_ids
        ids = within(banned, logits.shape[1])
        points.add(row, ids, [NEVER] * len(ids))
    if points.ids:
        index, values = points.on(logits.device)
        logits[index] = values
