"""`AttentionPlan`: which tokens of which requests a step's attention is about."""

from __future__ import annotations

from typing import Any

from radixserve.kernels.native import extension, require


class AttentionPlan:
    """A batch's block tables, made into work for `Program.attention`.

    Set once a step, used by every layer. KV is computed on in chunks of 128 tokens. A chunk that
    several requests read from the same blocks is read and reshaped once for all of them, and a long
    request's chunks are spread over the threads; neither changes a bit of the result.

    Args:
        share: Whether to look for chunks that several requests read.
    """

    def __init__(self, *, share: bool = True) -> None:
        require()
        self.native = extension.AttentionPlan(share=share)

    def set(
        self,
        *,
        qo_indptr: Any,
        kv_indptr: Any,
        kv_indices: Any,
        kv_lens: Any,
        block_size: int,
        num_qo_heads: int,
        num_kv_heads: int,
    ) -> None:
        """Take in a batch of B requests. Arrays are int32, torch's or numpy's, and are copied.

        Row i of a request sees the tokens `<= kv_len - qo_len + i`, its own included.

        Args:
            qo_indptr: [B + 1], rows of each request.
            kv_indptr: [B + 1], blocks of each request.
            kv_indices: [kv_indptr[-1]], block ids.
            kv_lens: [B], tokens of each request, those of this step included.
            block_size: Tokens a block.
            num_qo_heads: Query heads; a multiple of the KV heads.
            num_kv_heads: KV heads.
        Raises:
            ValueError: the arrays do not fit together; the former batch is kept.
        Complexity: O(blocks), and a comparison of every two requests' first chunks.
        """
        self.native.set(
            qo_indptr, kv_indptr, kv_indices, kv_lens, block_size, num_qo_heads, num_kv_heads
        )

    @property
    def num_rows(self) -> int:
        """Rows of the batch."""
        return self.native.num_rows

    @property
    def num_shared_chunks(self) -> int:
        """Chunks that are computed once for several requests."""
        return self.native.num_shared_chunks

    @property
    def num_stored_items(self) -> int:
        """Work items that store what they compute, to be merged by the walks."""
        return self.native.num_stored_items

    @property
    def num_walks(self) -> int:
        """Work items that go through a request's chunks to its result."""
        return self.native.num_walks
