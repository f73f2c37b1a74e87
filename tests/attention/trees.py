"""Random batches whose block tables are paths of a tree, in the tree's order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

import torch
from hypothesis import strategies as st

from radixserve.attention.build import build_metadata
from radixserve.attention.layer_kv import LayerKV
from radixserve.attention.levels import find_levels
from radixserve.config import CascadeConfig
from radixserve.types import pack_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from radixserve.attention.backend import AttentionBackend
    from radixserve.attention.metadata import AttentionMetadata


@dataclass(frozen=True)
class Batch:
    """Request i extends `starts[i]` tokens in its table's blocks by `qo_lens[i]`."""

    tables: list[list[int]]
    starts: list[int]
    qo_lens: list[int]
    block_size: int

    @property
    def metadata(self) -> AttentionMetadata:
        """Flat, as the runtime builds it."""
        return build_metadata(
            qo_lens=self.qo_lens,
            starts=self.starts,
            tables=[pack_ids(table) for table in self.tables],
            block_size=self.block_size,
        )

    @property
    def num_blocks(self) -> int:
        """Blocks that a pool for it needs."""
        return max(max(table) for table in self.tables) + 1

    def draw_layer(
        self, *, num_kv_heads: int, head_dim: int, dtype: torch.dtype, seed: int
    ) -> LayerKV:
        """Return a pool with KV in every slot that the requests have filled, NaN in the others."""
        generator = torch.Generator().manual_seed(seed)
        shape = (self.num_blocks, self.block_size, num_kv_heads, head_dim)
        is_filled = torch.zeros(shape[:2], dtype=torch.bool)
        offsets = torch.arange(self.block_size)
        for table, start in zip(self.tables, self.starts, strict=True):
            slots = (torch.tensor(table)[:, None] * self.block_size + offsets).flatten()
            is_filled.view(-1)[slots[:start]] = True
        k, v = (
            torch.randn(shape, generator=generator, dtype=dtype).masked_fill(
                ~is_filled[..., None, None], torch.nan
            )
            for _ in range(2)
        )
        return LayerKV(k=k, v=v)


@st.composite
def batches(draw: st.DrawFn, *, block_sizes: Sequence[int] = (1, 16, 64)) -> Batch:
    """Batches of 1 to 27 requests over up to three layers of shared nodes."""
    block_size = draw(st.sampled_from(block_sizes))
    fresh = iter(Random(draw(st.integers(0, 99))).sample(range(200), 200))
    num_children = st.sampled_from([3, 2, 1])

    def grow(depth: int) -> list[list[int]]:
        """Return the shared part of each request under one node."""
        own = [next(fresh) for _ in range(draw(st.sampled_from([2, 1, 3, 0])))]
        if depth == 0:
            return [own] * draw(num_children)
        return [own + path for _ in range(draw(num_children)) for path in grow(depth - 1)]

    tables, starts, qo_lens = [], [], []
    for path in grow(draw(st.sampled_from([1, 2, 0]))):
        qo_len = draw(st.one_of(st.just(1), st.integers(1, 2 * block_size)))
        private = draw(st.integers(0, 2 * block_size))
        start = len(path) * block_size + private
        num_blocks = -(-(start + qo_len) // block_size)
        tables.append(path + [next(fresh) for _ in range(num_blocks - len(path))])
        starts.append(start)
        qo_lens.append(qo_len)
    return Batch(tables, starts, qo_lens, block_size)


gates = st.builds(
    CascadeConfig,
    min_sharers=st.integers(2, 4),
    min_shared_tokens=st.sampled_from([1, 16, 100]),
    max_levels=st.integers(2, 4),
)


class Levelled:
    """A backend that is given every batch with the levels that a gate lets through."""

    def __init__(self, inner: AttentionBackend, gate: CascadeConfig) -> None:
        self._inner = inner
        self._gate = gate

    def plan(self, metadata: AttentionMetadata) -> None:
        self._inner.plan(replace(metadata, levels=find_levels(metadata, self._gate)))

    def run(self, layer_id: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self._inner.run(layer_id, q, k, v)
