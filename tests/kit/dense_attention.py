"""Attention that is obviously right: one request, no KV pool, no blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from radixserve.attention.metadata import AttentionMetadata


class DenseAttention:
    """An `AttentionBackend` for one request whose rows arrive in order, in one or more batches.

    It keeps each layer's keys and values itself and needs no metadata.
    """

    def __init__(self) -> None:
        self._past: dict[int, tuple[Tensor, Tensor]] = {}

    def plan(self, metadata: AttentionMetadata | None = None) -> None:
        """Do nothing: there is only one way to attend."""

    def run(self, layer_id: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Append k and v and attend, each row to all rows up to its own."""
        if layer_id in self._past:
            past_k, past_v = self._past[layer_id]
            k, v = torch.cat((past_k, k)), torch.cat((past_v, v))
        self._past[layer_id] = (k.clone(), v.clone())
        group = q.shape[1] // k.shape[1]
        keys, values = k.repeat_interleave(group, 1).float(), v.repeat_interleave(group, 1).float()
        scores = torch.einsum("qhd,khd->hqk", q.float(), keys) / q.shape[2] ** 0.5
        visible = torch.ones(scores.shape[1:], dtype=torch.bool).tril(k.shape[0] - q.shape[0])
        weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype)
