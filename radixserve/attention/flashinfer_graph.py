"""`FlashInferGraphAttention`: the attention of one CUDA graph.

A graph replays the launches that were captured, with the addresses of then. So all that differs
from batch to batch lies in buffers that never move: `plan` fills them before each replay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from radixserve.attention.backend import check_planned
from radixserve.attention.flashinfer_args import decode_args
from radixserve.attention.flashinfer_kernels import DecodeBuffers
from radixserve.attention.flashinfer_pool import plan_decode
from radixserve.device.transfer import to_device
from radixserve.errors import InvariantError

if TYPE_CHECKING:
    from torch import Tensor

    from radixserve.attention.flashinfer_kernels import Kernels
    from radixserve.attention.flashinfer_pool import FlashInferPool
    from radixserve.attention.metadata import AttentionMetadata


class FlashInferGraphAttention:
    """An `AttentionBackend` for batches of exactly `bucket` decodes, flat; see `pad_decode`.

    `plan` is called outside of the graph, `run` while it is captured. Without a capture `run` works
    like any other backend's.

    Args:
        pool: The KV pool.
        kernels: Builds the wrapper.
        bucket: Rows of every batch.
        scale: Factor on the scores.
        workspace: For partial results; may be shared by all that runs on one stream.
        indices: For the block ids of a batch, likewise.
    """

    def __init__(
        self,
        pool: FlashInferPool,
        kernels: Kernels,
        *,
        bucket: int,
        scale: float,
        workspace: Tensor,
        indices: Tensor,
    ) -> None:
        self._pool = pool
        self._bucket = bucket
        self._scale = scale
        indptr = torch.zeros(bucket + 1, dtype=torch.int32, device=pool.device)
        last_page_len = torch.zeros(bucket, dtype=torch.int32, device=pool.device)
        self._wrapper = kernels.decode(workspace, DecodeBuffers(indptr, indices, last_page_len))
        self._slots = torch.zeros(bucket, dtype=torch.int64, device=pool.device)
        self._is_planned = False
        self._plan_copied = kernels.event()

    @property
    def bucket(self) -> int:
        """Rows of every batch."""
        return self._bucket

    def plan(self, metadata: AttentionMetadata) -> None:
        """Take in a batch: fill the buffers that the captured kernels read.

        Waits until the last plan has left the pinned buffer that this one is written into. With
        one step in flight that has happened by the time the next one is planned.

        Raises:
            InvariantError: it is not a batch of `bucket` decodes.
        Mutates: the buffers; the pool is not touched.
        """
        args = decode_args(metadata)
        if args.num_rows != self._bucket:
            counts = f"{args.num_rows} requests in a graph of {self._bucket}"
            raise InvariantError(0, f"a graph's batch is padded to its bucket; got {counts}")
        self._plan_copied.synchronize()
        plan_decode(self._wrapper, args, self._pool.shape, self._scale, self._pool.device)
        self._slots.copy_(to_device(metadata.slot_mapping, self._pool.device))
        self._plan_copied.record()
        self._is_planned = True

    def run(self, layer_id: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write this layer's new K and V to their slots and attend over the whole of each request.

        Args:
            layer_id: Which layer of the pool, from 0.
            q: [bucket, num_qo_heads, head_dim], rotated.
            k: [bucket, num_kv_heads, head_dim], rotated.
            v: [bucket, num_kv_heads, head_dim].
        Returns:
            [bucket, num_qo_heads, head_dim], in q's dtype.
        Raises:
            InvariantError: nothing is planned, or another number of tokens.
        Mutates:
            the pool's slots named by the planned `slot_mapping`.
        """
        check_planned(self._bucket if self._is_planned else 0, q)
        self._pool.write(layer_id, self._slots, k, v)
        return self._pool.attend(layer_id, self._wrapper, q)
