"""A Llama-family decoder over a flat batch: rows of many requests, no padding."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from radixserve.models.layers import DecoderLayer, ForwardPass, RMSNorm
from radixserve.models.ops import PLAIN_OPS
from radixserve.models.rotary import RotaryTable

if TYPE_CHECKING:
    from radixserve.attention.backend import AttentionBackend
    from radixserve.models.config import ModelSpec
    from radixserve.models.ops import LayerOps


class Decoder(Protocol):
    """A model that writes its KV to a pool, whatever kernels it runs on."""

    def __call__(self, token_ids: Tensor, positions: Tensor, attention: AttentionBackend) -> Tensor:
        """Return the last hidden state of every row, after the final norm.

        Args:
            token_ids: [T], int64.
            positions: [T], int64, each below the model's max_position.
            attention: Planned for this batch.
        Returns:
            [T, hidden_size]: good until the next call.
        Mutates:
            the KV pool that `attention` writes to.
        """
        ...

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [R, vocab_size] in float32 of R rows of a call's output.

        Good until the next call.
        """
        ...

    def kernel_seconds(self) -> dict[str, float]:
        """Return the seconds spent so far in each kind of kernel; empty where nobody counts.

        May be called while the model runs.
        """
        ...


class CausalLM(nn.Module):
    """Embedding, layers, final norm and output head.

    The weights are left unwritten; `models.loader` fills them and proves that it filled them all.

    Args:
        spec: The model's shape.
        dtype: Of the weights and of the computation.
    """

    def __init__(self, spec: ModelSpec, *, dtype: torch.dtype) -> None:
        super().__init__()
        self._ops: LayerOps = PLAIN_OPS
        shape = (spec.vocab_size, spec.hidden_size)
        self.embedding = nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)
        self.layers = nn.ModuleList(
            DecoderLayer(spec, layer_id, dtype=dtype) for layer_id in range(spec.num_layers)
        )
        self.norm = RMSNorm(spec.hidden_size, eps=spec.rms_norm_eps, dtype=dtype)
        self.is_tied = spec.tie_word_embeddings
        self.head = (
            self.embedding
            if self.is_tied
            else nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)
        )
        self.rotary = RotaryTable(
            spec.rotary, head_dim=spec.head_dim, max_position=spec.max_position
        )

    def with_ops(self, ops: LayerOps) -> CausalLM:
        """Return this model, the very weights, with its small operations done by `ops`.

        A new model's are in plain torch.
        """
        model = copy.copy(self)
        model._ops = ops
        return model

    def forward(self, token_ids: Tensor, positions: Tensor, attention: AttentionBackend) -> Tensor:
        """Return the last hidden state of every row, after the final norm.

        Args:
            token_ids: [T], int64.
            positions: [T], int64, each below the model's max_position.
            attention: Planned for this batch.
        Returns:
            [T, hidden_size], in the model's dtype.
        Mutates:
            the KV pool that `attention` writes to.
        """
        residual = F.embedding(token_ids, self.embedding)
        around = ForwardPass(self._ops, self._ops.rotation(self.rotary, positions), attention)
        share: Tensor | None = None
        for layer in self.layers:
            share = layer(share, residual, around)
        return self.norm(share, residual, self._ops)  # type: ignore[no-any-return]

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [R, vocab_size] in float32 of R rows of `forward`'s output."""
        return F.linear(hidden, self.head).float()

    def kernel_seconds(self) -> dict[str, float]:
        """Return nothing: torch does not tell."""
        return {}

    def checkpoint_targets(self) -> dict[str, Tensor]:
        """Return, for each tensor that a checkpoint must have, the view to write it into."""
        targets: dict[str, Tensor] = {"model.embed_tokens.weight": self.embedding}
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            targets |= layer.checkpoint_targets()
        targets |= self.norm.checkpoint_targets("model.norm")
        if not self.is_tied:
            targets["lm_head.weight"] = self.head
        return targets
