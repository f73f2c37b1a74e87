"""From `AttentionMetadata` to the arguments of FlashInfer's `plan`: pure, on the CPU.

    q_len 1 everywhere        decode_args(metadata)     one plan of the decode wrapper
    anything else             prefill_args(metadata)    one plan of the prefill wrapper, causal
    with cascade levels       level_args(levels)        one plan a level; only the last is causal
    a CUDA graph's bucket     decode_args(pad_decode(metadata, bucket, dummy_block))

All arrays are int32 on the CPU: the library plans on the host, and would read back what lies on the
device. What its kernels cannot take is refused here, when the backend is built.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from radixserve.errors import BackendUnavailableError, InvariantError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from radixserve.attention.metadata import AttentionMetadata, CascadeLevel

HEAD_DIMS = (64, 128, 256)
Q_DTYPES = (torch.float16, torch.bfloat16)
FP8_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)

ALTERNATIVE = "use --attention-backend cpu, or another model"

MAX_TOKENS = 2**31
"""Page ids and offsets into them are int32."""

MAX_BLOCK_ELEMENTS = 2**32
"""Strides are held as uint32, in elements."""

WORKSPACE_ALIGNMENT = 16

MERGE_THREADS = 1024
"""One thread block of the merge holds all heads of a row, 16 bytes a thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelShape:
    """What the kernels are compiled and planned for.

    Raises:
        BackendUnavailableError: they cannot take it; says why, and what to use instead.
    """

    num_qo_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    num_blocks: int
    q_dtype: torch.dtype
    kv_dtype: torch.dtype

    def __post_init__(self) -> None:
        for reason in (self._heads(), self._dtypes(), self._sizes()):
            if reason:
                raise BackendUnavailableError(f"flashinfer {reason}; {ALTERNATIVE}")

    def _heads(self) -> str | None:
        if self.num_qo_heads % self.num_kv_heads:
            counts = f"{self.num_qo_heads} query heads over {self.num_kv_heads} KV heads"
            return f"needs equally many query heads for each KV head, not {counts}"
        if self.head_dim not in HEAD_DIMS:
            return f"has kernels for head_dim 64, 128 and 256, not {self.head_dim}"
        return None

    def _dtypes(self) -> str | None:
        if self.q_dtype not in Q_DTYPES:
            return f"computes in float16 or bfloat16, not {_name(self.q_dtype)}"
        if self.kv_dtype != self.q_dtype and not self.is_fp8:
            dtypes = f"{_name(self.kv_dtype)} under {_name(self.q_dtype)}"
            return f"reads KV of the queries' dtype or of 8-bit floats, not {dtypes}"
        return None

    def _sizes(self) -> str | None:
        num_tokens = self.num_blocks * self.block_size
        if num_tokens >= MAX_TOKENS:
            return f"counts tokens in 32 bits, and a pool of {num_tokens} does not fit"
        if self.block_size * self.num_kv_heads * self.head_dim >= MAX_BLOCK_ELEMENTS:
            return f"cannot stride over blocks of {self.block_size} tokens"
        return None

    @property
    def group_size(self) -> int:
        """Query heads that read one KV head."""
        return self.num_qo_heads // self.num_kv_heads

    @property
    def is_fp8(self) -> bool:
        """Whether KV is stored in 8 bits, beside a scale."""
        return self.kv_dtype in FP8_DTYPES

    @property
    def can_merge(self) -> bool:
        """Whether the merge of two levels takes this many heads."""
        per_thread = max(16 // self.q_dtype.itemsize, self.head_dim // 32)
        return self.num_qo_heads * self.head_dim // per_thread <= MERGE_THREADS


@dataclass(frozen=True, slots=True, eq=False)
class PrefillArgs:
    """What one plan of a prefill wrapper is about: segments of rows over pages of KV."""

    qo_indptr: Tensor
    """[num_segments + 1], int32."""
    kv_indptr: Tensor
    """[num_segments + 1], int32, in pages."""
    kv_indices: Tensor
    """[kv_indptr[-1]], int32."""
    last_page_len: Tensor
    """[num_segments], int32; 0 for a segment without pages."""
    causal: bool

    @property
    def num_rows(self) -> int:
        """Rows of q."""
        return int(self.qo_indptr[-1])


@dataclass(frozen=True, slots=True, eq=False)
class DecodeArgs:
    """What one plan of a decode wrapper is about: one row a request."""

    indptr: Tensor
    """[B + 1], int32, in pages."""
    indices: Tensor
    """[indptr[-1]], int32."""
    last_page_len: Tensor
    """[B], int32, at least 1."""

    @property
    def num_rows(self) -> int:
        """Rows of q, and requests."""
        return len(self.last_page_len)


@dataclass(frozen=True, slots=True, eq=False)
class AppendArgs:
    """Where `append_paged_kv_cache` puts each row's K and V."""

    batch_indices: Tensor
    """[T], int32: each row's request."""
    positions: Tensor
    """[T], int32: each row's position in its request."""


def is_pure_decode(metadata: AttentionMetadata) -> bool:
    """Whether each request computes exactly one token."""
    return metadata.num_tokens == metadata.num_reqs


def prefill_args(metadata: AttentionMetadata) -> PrefillArgs:
    """Return the plan of any batch, flat."""
    return PrefillArgs(
        qo_indptr=metadata.qo_indptr,
        kv_indptr=metadata.kv_indptr,
        kv_indices=metadata.kv_indices,
        last_page_len=metadata.kv_last_page_len,
        causal=True,
    )


def decode_args(metadata: AttentionMetadata) -> DecodeArgs:
    """Return the plan of a batch in which each request computes one token.

    Raises:
        InvariantError: one computes more.
    """
    if not is_pure_decode(metadata):
        counts = f"{metadata.num_tokens} tokens of {metadata.num_reqs} requests"
        raise InvariantError(0, f"a decode computes one token a request, not {counts}")
    return DecodeArgs(metadata.kv_indptr, metadata.kv_indices, metadata.kv_last_page_len)


def level_args(levels: Sequence[CascadeLevel]) -> tuple[PrefillArgs, ...]:
    """Return one plan a level, in the levels' order."""
    private = len(levels) - 1
    return tuple(
        PrefillArgs(
            qo_indptr=level.qo_indptr,
            kv_indptr=level.kv_indptr,
            kv_indices=level.kv_indices,
            last_page_len=level.kv_last_page_len,
            causal=depth == private,
        )
        for depth, level in enumerate(levels)
    )


def append_args(metadata: AttentionMetadata) -> AppendArgs:
    """Return each row's request and its position there."""
    requests = torch.arange(metadata.num_reqs, dtype=torch.int32)
    lens = metadata.qo_indptr.diff()
    return AppendArgs(
        batch_indices=requests.repeat_interleave(lens),
        positions=metadata.positions.to(torch.int32),
    )


def pad_decode(metadata: AttentionMetadata, bucket: int, dummy_block: int) -> AttentionMetadata:
    """Return the batch with rows added until it has `bucket` of them.

    An added row is a request of one token, written to and read from the first slot of the dummy
    block: a row without keys would come out as NaN on some of the ways that follow it.

    Args:
        metadata: Each request computes one token; cascade levels are dropped.
        bucket: Rows wanted, at least as many as there are.
        dummy_block: A block of the pool that no request owns.
    Raises:
        InvariantError: a request computes more than a token, or there are too many.
    """
    args = decode_args(metadata)
    extra = bucket - args.num_rows
    if extra < 0:
        raise InvariantError(0, f"{args.num_rows} requests do not fit into a bucket of {bucket}")
    ones = torch.ones(extra, dtype=torch.int32)
    more = torch.arange(1, extra + 1, dtype=torch.int32)
    slot = dummy_block * metadata.block_size
    return replace(
        metadata,
        qo_indptr=torch.cat((metadata.qo_indptr, metadata.qo_indptr[-1] + more)),
        kv_indptr=torch.cat((args.indptr, args.indptr[-1] + more)),
        kv_indices=torch.cat((args.indices, ones * dummy_block)),
        kv_last_page_len=torch.cat((args.last_page_len, ones)),
        kv_lens=torch.cat((metadata.kv_lens, ones)),
        slot_mapping=torch.cat((metadata.slot_mapping, ones.long() * slot)),
        positions=torch.cat((metadata.positions, ones.long() * 0)),
        levels=(),
    )


def workspace_bytes(shape: KernelShape, *, num_sms: int, max_bucket: int) -> int:
    """Return the bytes that the kernels' partial results take at most, over all batches.

    They are written only where a request's KV is divided among thread blocks. Without a graph there
    are then at most two blocks an SM; with one, also one a tile of the rows of the largest bucket.

    Args:
        shape: Of the kernels.
        num_sms: Multiprocessors of the device.
        max_bucket: Rows of the largest CUDA graph; 0 for none.
    Source: flashinfer 0.7.2.post1, PrefillPlanImpl and PrefillSplitQOKVIndptr in scheduler.cuh.
    """
    ctas = 2 * num_sms // shape.num_kv_heads
    partial_rows = _partial_rows(ctas, 128, shape.group_size)
    for tile in (16, 64) if max_bucket else ():
        tiles = -(-max_bucket * shape.group_size // tile) + max_bucket - 1
        partial_rows = max(partial_rows, _partial_rows(max(ctas, tiles), tile, shape.group_size))
    row_bytes = (shape.head_dim + 1) * torch.float32.itemsize
    return shape.num_qo_heads * partial_rows * row_bytes + 2 * WORKSPACE_ALIGNMENT


def _partial_rows(num_blocks: int, tile: int, group_size: int) -> int:
    return -(-num_blocks * tile // group_size)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
