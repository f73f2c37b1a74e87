"""Paged attention over a model's heads: decodes, prefixes that are shared, prompts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from radixserve.attention.build import build_metadata
from radixserve.attention.layer_kv import allocate_layers
from radixserve.bench.kernels.limits import Measured, medians_in_turn, num_copies, seconds_of
from radixserve.kernels import AttentionPlan, Program, View
from radixserve.types import pack_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.bench.kernels.heads import Heads

BLOCK_SIZE = 16

MOST_FLOPS = 8e9
"""Operations of one pass at most: long prompts, which no memory slows, need few layers."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}

LayerViews: TypeAlias = "tuple[View, ...]"
"""K and V of a layer, and for int8 the scales of each."""


@dataclass(frozen=True, slots=True)
class Case:
    """`num_reqs` requests of `qo_len` tokens each that end a context of `kv_len`."""

    name: str
    num_reqs: int
    kv_len: int
    qo_len: int = 1
    shared: int = 0
    """Tokens at the beginning that all of them read from the same blocks."""

    @property
    def rows(self) -> int:
        """Query tokens."""
        return self.num_reqs * self.qo_len

    @property
    def kv_tokens(self) -> int:
        """Tokens whose KV is read, shared ones once."""
        shared = self.shared // BLOCK_SIZE * BLOCK_SIZE
        return shared + self.num_reqs * (self.kv_len - shared)

    def num_flops(self, heads: Heads) -> float:
        """Return the operations of a layer; a multiply-add is two."""
        seen = self.kv_len - (self.qo_len - 1) / 2
        return 4.0 * self.rows * seen * heads.num_qo_heads * heads.head_dim

    def num_bytes(self, heads: Heads, dtype: torch.dtype) -> float:
        """Return the bytes of KV that a layer must read once."""
        return 2.0 * self.kv_tokens * heads.num_kv_heads * _head_bytes(heads, dtype)

    def shortened(self) -> Case:
        """Return a quarter of it."""
        return replace(
            self,
            kv_len=self.kv_len // 4,
            qo_len=max(1, self.qo_len // 4),
            shared=self.shared // 4,
        )


CASES = (
    Case("decode", num_reqs=1, kv_len=1024),
    Case("decode", num_reqs=1, kv_len=8192),
    Case("decode", num_reqs=8, kv_len=1024),
    Case("decode", num_reqs=32, kv_len=1024),
    Case("shared", num_reqs=8, kv_len=2100, shared=2000),
    Case("shared", num_reqs=32, kv_len=2100, shared=2000),
    Case("prefill", num_reqs=1, kv_len=512, qo_len=512),
    Case("prefill", num_reqs=1, kv_len=2048, qo_len=2048),
    Case("extend", num_reqs=8, kv_len=1064, qo_len=64, shared=1000),
)


def measure_case(case: Case, dtype: str, heads: Heads, *, repeats: int) -> Measured:
    """Return what a case takes a layer, its part of planning the step included.

    In turn with it run the same batch over the same blocks with sharing switched off, and, where
    anything is shared, a batch of the same lengths in which every request has KV of its own. Each
    pass goes over so many layers that no cache holds their KV, as in a model.
    """
    kept = DTYPES[dtype]
    pools = _make_pools(case, kept, heads)
    runs = {
        "": _Layers(case, pools, heads, shares=True),
        "share off": _Layers(case, pools, heads, shares=False),
    }
    if case.shared:
        apart = replace(case, shared=0)
        runs["copies"] = _Layers(apart, _make_pools(apart, kept, heads), heads, shares=True)
    ours, *others = medians_in_turn([each.run for each in runs.values()], repeats=repeats)
    names = list(runs)[1:]
    return Measured(
        case.name,
        dtype,
        case.rows,
        context=case.kv_len,
        seconds=ours,
        num_bytes=case.num_bytes(heads, kept),
        num_flops=case.num_flops(heads),
        ratios={name: other / ours for name, other in zip(names, others, strict=True)},
    )


class _Layers:
    """A case over enough layers, ready to run.

    Args:
        case: What to run.
        pools: The KV of each layer.
        heads: Of the model.
        shares: Whether the kernel looks for shared chunks.
    """

    def __init__(
        self, case: Case, pools: Sequence[LayerViews], heads: Heads, *, shares: bool
    ) -> None:
        self._case, self._heads, self._num_layers = case, heads, len(pools)
        self._metadata = build_metadata(
            qo_lens=[case.qo_len] * case.num_reqs,
            starts=[case.kv_len - case.qo_len] * case.num_reqs,
            tables=[pack_ids(table) for table in _draw_tables(case)],
            block_size=BLOCK_SIZE,
        )
        self._plan = AttentionPlan(share=shares)
        self._program = Program()
        q = View(torch.randn(case.rows, heads.num_qo_heads, heads.head_dim))
        out = View(torch.empty(case.rows, heads.num_qo_heads, heads.head_dim))
        scale = heads.head_dim**-0.5
        for k_pool, v_pool, *scales in pools:
            self._program.attention(q, k_pool, v_pool, self._plan, out, scale, *scales)

    def run(self) -> float:
        """Return the seconds of a layer."""
        return seconds_of(self._step) / self._num_layers

    def _step(self) -> None:
        self._plan.set(
            qo_indptr=self._metadata.qo_indptr,
            kv_indptr=self._metadata.kv_indptr,
            kv_indices=self._metadata.kv_indices,
            kv_lens=self._metadata.kv_lens,
            block_size=BLOCK_SIZE,
            num_qo_heads=self._heads.num_qo_heads,
            num_kv_heads=self._heads.num_kv_heads,
        )
        self._program.run(self._case.rows)


def _draw_tables(case: Case) -> list[list[int]]:
    """Return block tables over scattered blocks, beginning alike as far as the case shares."""
    num_shared = case.shared // BLOCK_SIZE
    own = -(-case.kv_len // BLOCK_SIZE) - num_shared
    ids = np.random.default_rng(0).permutation(num_shared + own * case.num_reqs).tolist()
    shared, rest = ids[:num_shared], ids[num_shared:]
    return [shared + rest[i * own : (i + 1) * own] for i in range(case.num_reqs)]


def _head_bytes(heads: Heads, dtype: torch.dtype) -> int:
    scale_bytes = torch.float32.itemsize if dtype == torch.int8 else 0
    return heads.head_dim * dtype.itemsize + scale_bytes


def _make_pools(case: Case, dtype: torch.dtype, heads: Heads) -> list[LayerViews]:
    """Return the KV of enough layers, in memory as the engine's."""
    num_blocks = 1 + max(max(table) for table in _draw_tables(case))
    shape = (num_blocks, BLOCK_SIZE, heads.num_kv_heads, heads.head_dim)
    num_bytes = 2 * num_blocks * BLOCK_SIZE * heads.num_kv_heads * _head_bytes(heads, dtype)
    num_layers = min(num_copies(num_bytes), max(1, int(MOST_FLOPS / case.num_flops(heads))))
    layers = allocate_layers(num_layers, shape, dtype, "columns")
    for layer in layers:
        for half, scale in ((layer.k, layer.k_scale), (layer.v, layer.v_scale)):
            if scale is None:
                half.normal_()
            else:
                half.random_(-127, 128)
                scale.fill_(3 / 127)
    return [tuple(_view(tensor) for tensor in layer.tensors) for layer in layers]


def _view(tensor: torch.Tensor) -> View:
    return View(tensor if tensor.dim() == 4 else tensor[..., None])
