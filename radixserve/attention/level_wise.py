"""Attention level by level in plain torch: the meaning of `AttentionMetadata.levels`.

Equal to flat attention over the same batch but for rounding, which is what `levels` promise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from radixserve.attention.merge import Partial, attend, merge

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from radixserve.attention.metadata import CascadeLevel
    from radixserve.attention.paged_rows import PagedRows


def attend_by_levels(
    q: Tensor,
    k_pool: PagedRows,
    v_pool: PagedRows,
    levels: Sequence[CascadeLevel],
    *,
    scale: float,
) -> Tensor:
    """Return the attention of a batch whose K and V are in the pool, in float32 or wider.

    Args:
        q: [num_tokens, num_qo_heads, head_dim].
        k_pool: One layer's K.
        v_pool: And its V.
        levels: The batch's levels, the last one causal; at least one.
        scale: Factor on the scores.
    Returns:
        [num_tokens, num_qo_heads, head_dim].
    """
    private = len(levels) - 1
    partials = (
        attend_level(q, k_pool, v_pool, level, scale=scale, causal=depth == private)
        for depth, level in enumerate(levels)
    )
    merged = next(partials)
    for partial in partials:
        merged = merge(merged, partial)
    return merged.out


def attend_level(
    q: Tensor,
    k_pool: PagedRows,
    v_pool: PagedRows,
    level: CascadeLevel,
    *,
    scale: float,
    causal: bool,
) -> Partial:
    """Return the attention of every row over the KV of its segment at one level."""
    partials = [
        attend(q[begin:end], k, v, scale=scale, causal=causal)
        for begin, end, k, v in _segments(k_pool, v_pool, level)
    ]
    return Partial(torch.cat([p.out for p in partials]), torch.cat([p.lse for p in partials]))


def _segments(
    k_pool: PagedRows, v_pool: PagedRows, level: CascadeLevel
) -> Iterator[tuple[int, int, Tensor, Tensor]]:
    """Yield each segment's rows, begin and end, with the K and V that they see."""
    rows, blocks = level.qo_indptr.tolist(), level.kv_indptr.tolist()
    for i, last_len in enumerate(level.kv_last_page_len.tolist()):
        ids = level.kv_indices[blocks[i] : blocks[i + 1]].long()
        num_tokens = max(len(ids) - 1, 0) * k_pool.block_size + last_len
        yield (
            rows[i],
            rows[i + 1],
            k_pool.blocks(ids)[:num_tokens],
            v_pool.blocks(ids)[:num_tokens],
        )
