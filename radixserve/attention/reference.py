"""`ReferenceAttention`: paged attention in plain torch, the specification of all backends.

`plan` sorts the requests into groups that are computed together, once a step:

    qo_len 1:  kv 1040 1040 1038 | 37 12        decodes of like length, padded to the longest
    qo_len 96: kv 96                            a whole prompt: causal, no mask
    qo_len 16: kv 400                           a chunk over its cached prefix: masked

`run` gathers a group's K and V into a small buffer that stays in the processor's cache, and makes
one call of torch's fused attention. Padding repeats the request's own first token under a mask of
-inf, so that nothing is read but what the request itself wrote: a slot that it has not written yet
may hold another request's NaN, and 0 * NaN is NaN.

A batch whose metadata has `levels` is attended to level by level instead, and merged: slower here,
and the meaning of levels for all backends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional

from radixserve.attention.backend import check_heads, check_planned
from radixserve.attention.level_wise import attend_by_levels
from radixserve.attention.paged_rows import PagedRows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from radixserve.attention.layer_kv import LayerKV
    from radixserve.attention.metadata import AttentionMetadata, CascadeLevel

MAX_GROUP_TOKENS = 4096
"""Most KV tokens gathered for one group of several requests: a few megabytes, cache-resident."""

MAX_PADDING = 256
"""Most padding tokens of one request: beyond, a call of its own is cheaper."""


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """Requests of equal `qo_len` whose KV is gathered and attended over in one call."""

    num_reqs: int
    rows: Tensor
    """[num_reqs * qo_len], int64: the group's rows of q."""
    slots: Tensor
    """[num_reqs * max_kv_len], int64: slots to gather, padded."""
    mask: Tensor | None
    """[num_reqs, 1, qo_len, max_kv_len], 0 or -inf; None where every key is seen, or if causal."""
    is_causal: bool
    """Whether each request's keys are exactly its queries' own."""

    def to(self, device: torch.device) -> _Group:
        """Return the same on a device."""
        mask = None if self.mask is None else self.mask.to(device)
        return replace(self, rows=self.rows.to(device), slots=self.slots.to(device), mask=mask)


class ReferenceAttention:
    """Paged attention in plain torch, for any mix of prefill chunks and decodes.

    Args:
        layers: The KV pool, one entry a layer, in any layout and on any device; 16-bit floats or
            wider, or int8, which is multiplied by its scales when it is read.
        num_qo_heads: Query heads; a multiple of the pool's KV heads.
        scale: Factor on the scores; `head_dim ** -0.5` when None.
    Raises:
        BackendUnavailableError: the pool has no layer, or the head counts do not divide.
    """

    def __init__(
        self, layers: Sequence[LayerKV], *, num_qo_heads: int, scale: float | None = None
    ) -> None:
        check_heads(layers, num_qo_heads)
        _, _, self._num_kv_heads, self._head_dim = layers[0].k.shape
        self._num_qo_heads = num_qo_heads
        self._scale = self._head_dim**-0.5 if scale is None else scale
        self._device = layers[0].k.device
        self._pools = [
            (PagedRows(layer.k, layer.k_scale), PagedRows(layer.v, layer.v_scale))
            for layer in layers
        ]
        self._dtype = self._pools[0][0].dtype
        width = self._num_kv_heads * self._head_dim
        self._k_buffer = self._v_buffer = torch.empty(
            0, width, dtype=self._dtype, device=self._device
        )
        self._slot_mapping: Tensor | None = None
        self._groups: list[_Group] = []
        self._levels: tuple[CascadeLevel, ...] = ()

    def plan(self, metadata: AttentionMetadata) -> None:
        """Take in a batch: sort it into groups, find their slots and masks.

        Mutates: the plan held so far; the pool is not touched.
        Complexity: O(KV tokens).
        """
        self._slot_mapping = metadata.slot_mapping.to(self._device)
        self._levels = metadata.levels
        groups = () if metadata.levels else _build_groups(metadata, self._dtype)
        self._groups = [group.to(self._device) for group in groups]
        self._grow_buffers(max((len(group.slots) for group in self._groups), default=0))

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
        slots = self._slot_mapping
        check_planned(None if slots is None else len(slots), q)
        assert slots is not None
        k_pool, v_pool = self._pools[layer_id]
        k_pool.write(slots, k)
        v_pool.write(slots, v)
        if self._levels:
            rows = q.to(self._dtype)
            out = attend_by_levels(rows, k_pool, v_pool, self._levels, scale=self._scale)
            return out.to(q.dtype)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        for group in self._groups:
            rows = q.index_select(0, group.rows).to(self._dtype)
            out.index_copy_(0, group.rows, self._attend(group, rows, k_pool, v_pool).to(q.dtype))
        return out

    def _attend(self, group: _Group, q: Tensor, k_pool: PagedRows, v_pool: PagedRows) -> Tensor:
        """Return the attention of one group's rows: [num_reqs * qo_len, heads, head_dim]."""
        n, num_rows = group.num_reqs, len(group.rows)
        heads, head_dim = self._num_qo_heads, self._head_dim
        is_decode = num_rows == n
        if is_decode:  # the heads that share a KV head become rows of one product
            q = q.view(n, self._num_kv_heads, -1, head_dim)
        else:
            q = q.view(n, num_rows // n, heads, head_dim).transpose(1, 2)
        out = functional.scaled_dot_product_attention(
            q,
            self._gather(group, k_pool, self._k_buffer),
            self._gather(group, v_pool, self._v_buffer),
            attn_mask=group.mask,
            is_causal=group.is_causal,
            scale=self._scale,
            enable_gqa=not is_decode,
        )
        return (out if is_decode else out.transpose(1, 2)).reshape(num_rows, heads, head_dim)

    def _gather(self, group: _Group, pool: PagedRows, buffer: Tensor) -> Tensor:
        """Return the group's K or V, [num_reqs, kv_heads, max_kv_len, head_dim], in the buffer."""
        tokens = buffer[: len(group.slots)]
        pool.gather(group.slots, tokens)
        shape = (group.num_reqs, -1, self._num_kv_heads, self._head_dim)
        return tokens.view(shape).transpose(1, 2)

    def _grow_buffers(self, num_tokens: int) -> None:
        if num_tokens <= len(self._k_buffer):
            return
        # Ordinary tensors, so that a plan made in inference mode also runs outside of it.
        with torch.inference_mode(mode=False):
            size = (num_tokens, self._k_buffer.shape[1])
            self._k_buffer = torch.empty(size, dtype=self._dtype, device=self._device)
            self._v_buffer = torch.empty(size, dtype=self._dtype, device=self._device)


def _build_groups(metadata: AttentionMetadata, dtype: torch.dtype) -> Iterator[_Group]:
    qo_indptr = metadata.qo_indptr.numpy().astype(np.int64)
    qo_lens, kv_lens = np.diff(qo_indptr), metadata.kv_lens.numpy().astype(np.int64)
    for reqs in _partition(qo_lens, kv_lens):
        qo_len, kv = int(qo_lens[reqs[0]]), kv_lens[reqs]
        rows = qo_indptr[reqs][:, None] + np.arange(qo_len)
        is_causal = qo_len > 1 and bool((kv == qo_len).all())
        yield _Group(
            num_reqs=len(reqs),
            rows=torch.from_numpy(rows.reshape(-1)),
            slots=torch.from_numpy(_padded_slots(metadata, reqs, kv).reshape(-1)),
            mask=None if is_causal else _build_mask(qo_len, kv, dtype),
            is_causal=is_causal,
        )


def _partition(
    qo_lens: NDArray[np.int64], kv_lens: NDArray[np.int64]
) -> Iterator[NDArray[np.int64]]:
    """Yield the requests in groups of equal qo_len and like kv_len, the longest first in each."""
    order = np.lexsort((-kv_lens, qo_lens))
    pairs = list(zip(qo_lens[order].tolist(), kv_lens[order].tolist(), strict=True))
    begin = 0
    for end in range(1, len(pairs) + 1):
        if end == len(pairs) or not _can_join(pairs[begin], pairs[end], end - begin):
            yield order[begin:end]
            begin = end


def _can_join(longest: tuple[int, int], pair: tuple[int, int], num_reqs: int) -> bool:
    (qo_len, max_kv_len), (other_qo_len, kv_len) = longest, pair
    return (
        other_qo_len == qo_len
        and max_kv_len - kv_len <= MAX_PADDING
        and (num_reqs + 1) * max_kv_len <= MAX_GROUP_TOKENS
    )


def _padded_slots(
    metadata: AttentionMetadata, reqs: NDArray[np.int64], kv: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return [len(reqs), max_kv_len] slots; padding names the request's first token."""
    size = metadata.block_size
    tokens = np.arange(kv.max())
    tokens = np.where(tokens < kv[:, None], tokens, 0)
    entries = metadata.kv_indptr.numpy()[reqs][:, None] + tokens // size
    blocks: NDArray[np.int64] = metadata.kv_indices.numpy().astype(np.int64)[entries]
    slots: NDArray[np.int64] = blocks * size + tokens % size
    return slots


def _build_mask(qo_len: int, kv: NDArray[np.int64], dtype: torch.dtype) -> Tensor | None:
    """Return the bottom-right causal mask of a group, padding hidden; None if it hides nothing."""
    kv_lens = torch.from_numpy(kv)
    max_kv_len = int(kv.max())
    last_seen = kv_lens[:, None] - qo_len + torch.arange(qo_len)
    is_hidden = torch.arange(max_kv_len) > last_seen[:, :, None]
    if not bool(is_hidden.any()):
        return None
    mask = torch.zeros(is_hidden.shape, dtype=dtype)
    return mask.masked_fill_(is_hidden, float("-inf"))[:, None]
