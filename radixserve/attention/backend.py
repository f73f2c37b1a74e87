"""What an attention backend is: `plan` once a step, `run` once a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from radixserve.errors import BackendUnavailableError, InvariantError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from radixserve.attention.layer_kv import LayerKV
    from radixserve.attention.metadata import AttentionMetadata


class AttentionBackend(Protocol):
    """Paged attention over the KV pool it was built with.

    A backend is constructed from the layers' `LayerKV` and the model's head counts; it owns no KV.
    Implementations are held to `reference` by one conformance suite.
    """

    def plan(self, metadata: AttentionMetadata) -> None:
        """Take in a batch. Everything that does not depend on the layer is prepared here."""

    def run(self, layer_id: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write this layer's new K and V to their slots and attend over the whole of each request.

        Args:
            layer_id: Which layer of the pool, from 0.
            q: [num_tokens, num_qo_heads, head_dim], rotated.
            k: [num_tokens, num_kv_heads, head_dim], rotated.
            v: [num_tokens, num_kv_heads, head_dim].
        Returns:
            [num_tokens, num_qo_heads, head_dim], in q's dtype.
        Mutates:
            the pool's slots named by the planned `slot_mapping`.
        """
        ...


def check_planned(num_planned: int | None, q: Tensor) -> None:
    """Refuse rows that are not those of the planned batch.

    Args:
        num_planned: Its rows; None if nothing is planned.
        q: [num_tokens, ...].
    Raises:
        InvariantError: there are more or fewer of them, or there is no plan.
    """
    if num_planned != len(q):
        planned = num_planned or 0
        raise InvariantError(0, f"attention is planned for {planned} tokens, not {len(q)}")


def check_heads(layers: Sequence[LayerKV], num_qo_heads: int) -> None:
    """Refuse a pool that no backend can attend over.

    Raises:
        BackendUnavailableError: it has no layer, or its heads do not divide the query heads.
    """
    if not layers:
        raise BackendUnavailableError("attention needs a KV pool of at least one layer")
    num_kv_heads = layers[0].k.shape[2]
    if num_qo_heads % num_kv_heads:
        counts = f"{num_qo_heads} query heads over {num_kv_heads} KV heads"
        raise BackendUnavailableError(f"each KV head must serve equally many; got {counts}")
