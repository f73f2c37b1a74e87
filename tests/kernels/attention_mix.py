"""`Mix`: a ragged batch over a pool full of NaN, its attention in float64 and by the kernels."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from radixserve.attention.layer_kv import KVLayout, LayerKV, allocate_layers, quantize
from radixserve.kernels import AttentionPlan, Program, View

Floats = NDArray[np.float64]

DTYPES = (torch.float32, torch.bfloat16, torch.int8)
LAYOUTS: tuple[KVLayout, ...] = ("rows", "columns")


@dataclass(frozen=True)
class Request:
    """`qo_len` new tokens after `start` cached ones, of which the first are another request's."""

    qo_len: int
    start: int
    parent: int = -1
    """Request whose blocks this one's table begins with, -1 for none."""
    shared: int = 0
    """Tokens read from the parent's blocks at most; whole blocks of cached tokens only."""

    @property
    def kv_len(self) -> int:
        """Tokens of KV, the new ones included."""
        return self.start + self.qo_len


@dataclass(frozen=True)
class Mix:
    """A batch, and the shape of the pool under it."""

    requests: tuple[Request, ...]
    block_size: int = 16
    num_kv_heads: int = 2
    group: int = 3
    head_dim: int = 16
    dtype: torch.dtype = torch.float32
    layout: KVLayout = "rows"
    seed: int = 0
    tables: list[list[int]] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tables", self._draw_tables())

    @property
    def num_qo_heads(self) -> int:
        """Query heads."""
        return self.num_kv_heads * self.group

    def _draw_tables(self) -> list[list[int]]:
        tables: list[list[int]] = []
        used = 1  # block 0 is nobody's
        for request in self.requests:
            table: list[int] = []
            if request.parent >= 0:
                common = min(request.shared, request.start, self.requests[request.parent].start)
                table += tables[request.parent][: common // self.block_size]
            own = -(-request.kv_len // self.block_size) - len(table)
            table += range(used, used + own)
            used += own
            tables.append(table)
        shuffled = np.random.default_rng(self.seed).permutation(used)
        return [[int(shuffled[block]) for block in table] for table in tables]

    def slots(self, i: int) -> NDArray[np.int64]:
        """Where request i's tokens lie in the pool, as token numbers."""
        tokens = np.arange(self.requests[i].kv_len)
        table = np.array(self.tables[i], dtype=np.int64)
        result: NDArray[np.int64] = (
            table[tokens // self.block_size] * self.block_size + tokens % self.block_size
        )
        return result


@dataclass(frozen=True)
class Arrays:
    """What a layer's attention reads: queries of the whole batch, and the pools."""

    q: Tensor
    pool: LayerKV

    @property
    def values(self) -> tuple[Tensor, Tensor]:
        """K and V as they are read: [slots, KV heads, head_dim], float32."""
        scales = (self.pool.k_scale, self.pool.v_scale)
        k, v = (
            (pool.float() if scale is None else pool * scale[..., None]).flatten(0, 1)
            for pool, scale in zip((self.pool.k, self.pool.v), scales, strict=True)
        )
        return k, v

    @classmethod
    def draw(cls, mix: Mix) -> Arrays:
        """Draw numbers for a mix; every slot that none of its tokens fills is NaN."""
        generator = torch.Generator().manual_seed(mix.seed)
        num_blocks = max(max(table) for table in mix.tables) + 2
        shape = (num_blocks, mix.block_size, mix.num_kv_heads, mix.head_dim)
        written = torch.zeros(num_blocks * mix.block_size, dtype=torch.bool)
        for i in range(len(mix.requests)):
            written[torch.from_numpy(mix.slots(i))] = True
        hole = ~written.view(num_blocks, mix.block_size, 1)
        (pool,) = allocate_layers(1, shape, mix.dtype, mix.layout)
        for half, scale in ((pool.k, pool.k_scale), (pool.v, pool.v_scale)):
            values = torch.randn(shape, generator=generator)
            if scale is None:
                half.copy_(values.masked_fill(hole[..., None], torch.nan))
            else:
                codes, scales = quantize(values)
                half.copy_(codes)
                scale.copy_(scales.masked_fill(hole, torch.nan))
        rows = sum(request.qo_len for request in mix.requests)
        # Queries are columns of a wider buffer, as a fused projection leaves them.
        fused = torch.randn(rows, mix.num_qo_heads + 1, mix.head_dim, generator=generator)
        return cls(fused[:, 1:], pool)


def truth(mix: Mix, arrays: Arrays) -> Floats:
    """Return causal attention in float64, a request at a time: [rows, heads, head_dim]."""
    q = arrays.q.double().numpy()
    k_pool, v_pool = (values.double().numpy() for values in arrays.values)
    out, row = np.empty(q.shape), 0
    for i, request in enumerate(mix.requests):
        k, v = k_pool[mix.slots(i)], v_pool[mix.slots(i)]
        k, v = (np.repeat(each, mix.group, axis=1) for each in (k, v))
        rows = q[row : row + request.qo_len]
        scores = np.einsum("qhd,khd->hqk", rows, k) * mix.head_dim**-0.5
        last_seen = request.start + np.arange(request.qo_len)
        scores[:, np.arange(request.kv_len) > last_seen[:, None]] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        out[row : row + request.qo_len] = np.einsum("hqk,khd->qhd", weights, v)
        row += request.qo_len
    return out


def set_plan(plan: AttentionPlan, mix: Mix) -> None:
    """Plan the whole mix."""
    plan.set(
        qo_indptr=_indptr([request.qo_len for request in mix.requests]),
        kv_indptr=_indptr([len(table) for table in mix.tables]),
        kv_indices=np.array([block for table in mix.tables for block in table], dtype=np.int32),
        kv_lens=np.array([request.kv_len for request in mix.requests], dtype=np.int32),
        block_size=mix.block_size,
        num_qo_heads=mix.num_qo_heads,
        num_kv_heads=mix.num_kv_heads,
    )


def attend(mix: Mix, arrays: Arrays, *, share: bool = True) -> Tensor:
    """Return the kernels' attention of the whole mix: [rows, heads, head_dim]."""
    plan = AttentionPlan(share=share)
    set_plan(plan, mix)
    out = torch.full(arrays.q.shape, torch.nan)
    program = Program()
    pool = arrays.pool
    scales = [View(x[..., None]) for x in (pool.k_scale, pool.v_scale) if x is not None]
    program.attention(
        View(arrays.q),
        View(pool.k),
        View(pool.v),
        plan,
        View(out),
        mix.head_dim**-0.5,
        *scales,
    )
    program.run(len(arrays.q))
    return out


def attend_alone(mix: Mix, arrays: Arrays) -> Tensor:
    """Return the same attention, computed for every query token by itself, as a decode."""
    rows, row = [], 0
    for i, request in enumerate(mix.requests):
        for done in range(request.qo_len):
            alone = replace(mix, requests=(Request(qo_len=1, start=request.start + done),))
            alone.tables[:] = [mix.tables[i][: -(-alone.requests[0].kv_len // mix.block_size)]]
            part = Arrays(arrays.q[row : row + 1], arrays.pool)
            rows.append(attend(alone, part))
            row += 1
    return torch.cat(rows)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two float32 tensors are equal to the bit, NaN and the sign of 0 included."""
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


@st.composite
def mixes(draw: st.DrawFn, *, max_start: int = 420, max_qo_len: int = 40) -> Mix:
    """Draw batches of decodes and chunks of prompts, of which some continue others."""
    requests = [
        Request(
            qo_len=draw(st.one_of(st.just(1), st.integers(1, max_qo_len))),
            start=draw(st.integers(0, max_start)),
            parent=draw(st.integers(-1, i - 1)),
            shared=draw(st.integers(0, max_start)),
        )
        for i in range(draw(st.integers(1, 6)))
    ]
    return Mix(
        requests=tuple(requests),
        block_size=draw(st.sampled_from([1, 2, 7, 16, 48, 64])),
        num_kv_heads=draw(st.integers(1, 3)),
        group=draw(st.sampled_from([1, 2, 3, 4, 7])),
        head_dim=draw(st.sampled_from([8, 16, 24, 64])),
        dtype=draw(st.sampled_from(DTYPES)),
        layout=draw(st.sampled_from(LAYOUTS)),
        seed=draw(st.integers(0, 1000)),
    )


def _indptr(counts: list[int]) -> NDArray[np.int32]:
    return np.cumsum([0, *counts]).astype(np.int32)
