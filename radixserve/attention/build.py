"""From "these tokens of these sequences" to `AttentionMetadata`: the one place that derives it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from radixserve.attention.metadata import AttentionMetadata
from radixserve.errors import InvariantError
from radixserve.types import ID_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    from numpy.typing import NDArray

    from radixserve.types import PackedIds

    Ints: TypeAlias = NDArray[np.int64]


def build_metadata(
    *,
    qo_lens: Sequence[int],
    starts: Sequence[int],
    tables: Sequence[PackedIds],
    block_size: int,
) -> AttentionMetadata:
    """Return the metadata of a batch in which request i computes `qo_lens[i]` tokens.

    A table may name more blocks than the request needs yet; the surplus is left out.

    Args:
        qo_lens: Tokens computed now, at least 1 a request.
        starts: Tokens whose KV is valid already: position of each request's first new token.
        tables: Packed block ids, covering at least `starts[i] + qo_lens[i]` tokens.
        block_size: Tokens a block.
    Raises:
        InvariantError: the lists differ in length, a request has no token or starts below 0, or
            a table is too short.
    Complexity: O(tokens + blocks), without a Python loop over either.
    """
    qo = np.asarray(qo_lens, dtype=np.int64)
    first = np.asarray(starts, dtype=np.int64)
    kv_lens = first + qo if qo.shape == first.shape else qo
    num_blocks = -(-kv_lens // block_size)
    _check(qo, first, num_blocks, tables)

    qo_indptr, kv_indptr = _indptr(qo), _indptr(num_blocks)
    kv_indices = _join_tables(tables, num_blocks)
    positions = np.arange(qo_indptr[-1]) + np.repeat(first - qo_indptr[:-1], qo)
    entries = np.repeat(kv_indptr[:-1], qo) + positions // block_size
    slots = kv_indices[entries].astype(np.int64) * block_size + positions % block_size
    return AttentionMetadata(
        block_size=block_size,
        qo_indptr=_int32(qo_indptr),
        kv_indptr=_int32(kv_indptr),
        kv_indices=_int32(kv_indices),
        kv_last_page_len=_int32(last_page_lens(kv_lens, block_size)),
        kv_lens=_int32(kv_lens),
        slot_mapping=torch.from_numpy(slots),
        positions=torch.from_numpy(positions),
    )


def last_page_lens(kv_lens: Ints, block_size: int) -> Ints:
    """Return how many tokens lie in each request's last block, 1..block_size.

    Args:
        kv_lens: [B], tokens, each at least 1.
        block_size: Tokens a block.
    """
    return (kv_lens - 1) % block_size + 1


def _check(qo: Ints, first: Ints, num_blocks: Ints, tables: Sequence[PackedIds]) -> None:
    if not len(qo) == len(first) == len(tables):
        lens = f"{len(qo)} lengths, {len(first)} starts, {len(tables)} tables"
        raise InvariantError(0, f"one of each a request is needed; got {lens}")
    if len(qo) == 0 or qo.min() < 1 or first.min() < 0:
        raise InvariantError(0, f"a request computes no token: lengths {qo}, starts {first}")
    table_lens = np.fromiter((len(table) for table in tables), dtype=np.int64) // ID_BYTES
    short = np.flatnonzero(table_lens < num_blocks)
    if len(short):
        row = int(short[0])
        has, needs = int(table_lens[row]), int(num_blocks[row])
        raise InvariantError(0, f"request {row} needs {needs} blocks, its table has {has}")


def _indptr(counts: Ints) -> Ints:
    indptr = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=indptr[1:])
    return indptr


def _join_tables(tables: Sequence[PackedIds], num_blocks: Ints) -> NDArray[np.int32]:
    used = (table[: n * ID_BYTES] for table, n in zip(tables, num_blocks.tolist(), strict=True))
    return np.frombuffer(bytearray().join(used), dtype=np.int32)


def _int32(values: NDArray[np.int64] | NDArray[np.int32]) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.int32, copy=False))
