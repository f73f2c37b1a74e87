"""From the tensors of a batch to the hidden states of its rows: the slow part of every step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from radixserve.attention.backend import AttentionBackend
    from radixserve.models.decoder import Decoder
    from radixserve.runtime.batch import BatchTensors


class Forward(Protocol):
    """Runs a decoder over a batch."""

    def __call__(self, batch: BatchTensors) -> Tensor:
        """Return the last hidden state of every row, after the final norm.

        Args:
            batch: T rows; token ids and positions where the model is, the metadata on the host.
        Returns:
            [T, hidden_size]: good until the next call.
        Mutates:
            the KV pool.
        """
        ...


class EagerForward:
    """Plans the attention and calls the model, whatever the batch looks like.

    Args:
        model: The decoder.
        attention: Over the KV pool that the model writes to.
    """

    def __init__(self, model: Decoder, attention: AttentionBackend) -> None:
        self._model = model
        self._attention = attention

    def __call__(self, batch: BatchTensors) -> Tensor:
        """Return the last hidden state of every row; see `Forward`."""
        self._attention.plan(batch.metadata)
        return self._model(batch.token_ids, batch.positions, self._attention)
