"""`CpuAttention`: paged attention by the native kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from radixserve import kernels
from radixserve.attention.backend import check_heads, check_planned
from radixserve.errors import BackendUnavailableError, InvariantError
from radixserve.kernels import AttentionPlan, Program, View

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from radixserve.attention.layer_kv import LayerKV
    from radixserve.attention.metadata import AttentionMetadata

POOL_DTYPES = (torch.float32, torch.bfloat16, torch.int8)

HEAD_DIM_STEP = 8
"""head_dim is a multiple of this: the kernels transpose K in squares of 8."""


class CpuAttention:
    """Paged attention in C++, straight over the block tables.

    Requests that read the same blocks are found in the block tables and are computed together; the
    metadata's cascade `levels` are not needed. A row's result does not depend on the rest of the
    batch, to the bit.

    Args:
        layers: The KV pool, one entry a layer, in any layout; float32, bfloat16 or int8.
        num_qo_heads: Query heads; a multiple of the pool's KV heads.
        scale: Factor on the scores; `head_dim ** -0.5` when None.
    Raises:
        BackendUnavailableError: the kernels are not built, or cannot read this pool.
    """

    def __init__(
        self, layers: Sequence[LayerKV], *, num_qo_heads: int, scale: float | None = None
    ) -> None:
        _check(layers, num_qo_heads)
        _, self._block_size, self._num_kv_heads, head_dim = layers[0].k.shape
        self._num_qo_heads = num_qo_heads
        self._scale = head_dim**-0.5 if scale is None else scale
        self._pools = [_Pool.of(layer) for layer in layers]
        self._slot_mapping: Tensor | None = None
        self._plan = AttentionPlan()

    @property
    def num_layers(self) -> int:
        """Of the pool."""
        return len(self._pools)

    @property
    def slot_mapping(self) -> Tensor:
        """Where the planned rows' K and V go, [num_tokens], int64.

        Raises:
            InvariantError: nothing is planned.
        """
        if self._slot_mapping is None:
            raise InvariantError(0, "no attention is planned")
        return self._slot_mapping

    def plan(self, metadata: AttentionMetadata) -> None:
        """Take in a batch: find what is shared, divide the work.

        Raises:
            InvariantError: its arrays do not fit together.
        Mutates: the plan held so far; the pool is not touched.
        Complexity: O(blocks).
        """
        try:
            self._plan.set(
                qo_indptr=metadata.qo_indptr,
                kv_indptr=metadata.kv_indptr,
                kv_indices=metadata.kv_indices,
                kv_lens=metadata.kv_lens,
                block_size=metadata.block_size,
                num_qo_heads=self._num_qo_heads,
                num_kv_heads=self._num_kv_heads,
            )
        except ValueError as error:
            raise InvariantError(0, str(error)) from error
        self._slot_mapping = metadata.slot_mapping

    def run(self, layer_id: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write this layer's new K and V to their slots and attend over the whole of each request.

        Args:
            layer_id: Which layer of the pool, from 0.
            q: [num_tokens, num_qo_heads, head_dim], rotated.
            k: [num_tokens, num_kv_heads, head_dim], rotated.
            v: [num_tokens, num_kv_heads, head_dim].
        Returns:
            [num_tokens, num_qo_heads, head_dim], in q's dtype.
        Raises:
            InvariantError: nothing is planned, or another number of tokens.
        Mutates:
            the pool's slots named by the planned `slot_mapping`.
        """
        check_planned(self._plan.num_rows, q)
        out = torch.empty(q.shape, dtype=torch.float32)
        program = Program()
        views = (View(q.float()), View(k.float()), View(v.float()))
        self.record(program, layer_id, *views, View(self.slot_mapping), View(out))
        program.run(len(q))
        return out.to(q.dtype)

    def record(
        self, program: Program, layer_id: int, q: View, k: View, v: View, slots: View, out: View
    ) -> None:
        """Write down what `run` does, for the batch that is planned when the program runs.

        Args:
            layer_id: Which layer of the pool, from 0.
            q: [capacity, num_qo_heads, head_dim], float32, rotated; so is k.
            k: [capacity, num_kv_heads, head_dim].
            v: [capacity, num_kv_heads, head_dim].
            slots: [capacity], int64: that batch's `slot_mapping`.
            out: Of q's shape.
        Mutates: `program`.
        """
        pool = self._pools[layer_id]
        program.write_kv(k, v, slots, pool.k, pool.v, pool.k_scale, pool.v_scale)
        program.attention(
            q, pool.k, pool.v, self._plan, out, self._scale, pool.k_scale, pool.v_scale
        )


@dataclass(frozen=True, slots=True)
class _Pool:
    """A layer's share of the pool as the kernels take it."""

    k: View
    v: View
    k_scale: View | None
    v_scale: View | None

    @classmethod
    def of(cls, layer: LayerKV) -> _Pool:
        scales = (None if x is None else View(x[..., None]) for x in (layer.k_scale, layer.v_scale))
        return cls(View(layer.k), View(layer.v), *scales)


def _check(layers: Sequence[LayerKV], num_qo_heads: int) -> None:
    if not kernels.is_available():
        raise BackendUnavailableError(kernels.why_not())
    check_heads(layers, num_qo_heads)
    pool = layers[0].k
    head_dim = pool.shape[-1]
    if pool.device.type != "cpu" or pool.dtype not in POOL_DTYPES:
        got = f"{pool.dtype} on {pool.device}"
        raise BackendUnavailableError(
            f"the pool must be float32, bfloat16 or int8 on a CPU; got {got}"
        )
    if head_dim % HEAD_DIM_STEP:
        raise BackendUnavailableError(
            f"head_dim must be a multiple of {HEAD_DIM_STEP}; got {head_dim}"
        )
