"""`AttentionMetadata`: the one description of a batch that every attention backend consumes.

Three requests at block size 4; the second extends a cached prefix of 6 tokens by 3:

    rows of q        0 1 2 | 3 4 5 | 6            qo_indptr          [0, 3, 6, 7]
    kv_lens          3       9       5
    blocks           [7]     [2,9,4] [8,1]        kv_indptr          [0, 1, 4, 6]
                                                  kv_indices         [7, 2, 9, 4, 8, 1]
    last block       3/4     1/4     1/4          kv_last_page_len   [3, 1, 1]
    positions        0 1 2   6 7 8   4
    slot_mapping     28 29 30  38 39 16  4        = block * block_size + offset

The names and dtypes are FlashInfer's. Causal means bottom-right aligned: row i of a request sees
keys `<= kv_len - qo_len + i`, the new tokens' own keys included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class CascadeLevel:
    """One level of a cascade: groups of requests that read the same blocks.

    Each level covers every query row exactly once; a level's KV precedes the next level's.
    """

    qo_indptr: Tensor
    """[num_groups + 1], int32."""
    kv_indptr: Tensor
    """[num_groups + 1], int32, in blocks."""
    kv_indices: Tensor
    """[kv_indptr[-1]], int32."""
    kv_last_page_len: Tensor
    """[num_groups], int32."""


@dataclass(frozen=True, slots=True, eq=False)
class AttentionMetadata:
    """A batch of B requests with T query rows, as CPU tensors (backends copy what they need).

    Every request has at least one row and `kv_lens >= its rows`.
    """

    block_size: int
    qo_indptr: Tensor
    """[B + 1], int32: rows of q that belong to each request."""
    kv_indptr: Tensor
    """[B + 1], int32: blocks that belong to each request."""
    kv_indices: Tensor
    """[kv_indptr[-1]], int32: block ids."""
    kv_last_page_len: Tensor
    """[B], int32: tokens in each request's last block, 1..block_size."""
    kv_lens: Tensor
    """[B], int32: tokens of KV after this step's have been written."""
    slot_mapping: Tensor
    """[T], int64: where each row's K and V go: block * block_size + offset."""
    positions: Tensor
    """[T], int64: each row's position in its sequence."""
    levels: tuple[CascadeLevel, ...] = ()
    """Empty: flat attention. Else from the widest shared level to the private one."""

    @property
    def num_reqs(self) -> int:
        """Requests in the batch."""
        return self.kv_lens.shape[0]

    @property
    def num_tokens(self) -> int:
        """Query rows in the batch."""
        return self.positions.shape[0]
