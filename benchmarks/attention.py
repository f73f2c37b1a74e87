"""How near is paged attention to what the machine can do, and what is sharing worth?

    python -m benchmarks.attention                     every case, about a minute
    python -m benchmarks.attention --quick             small cases, to see that it works
    python -m benchmarks.attention --cases decode prefill --dtypes float32

The heads are those of SmolLM2-135M: 9 over 3 of KV, 64 wide. Two floors bound a case: the KV that
its requests read must come from memory once, shared blocks once for all, and its multiply-adds must
be done. Both limits are measured here, in the same run. Each case runs over so many layers that no
cache holds their KV, as in a model.

`share off` is the same kernel with the same batch and blocks, but `AttentionPlan(share=False)`;
`copies` is a batch of the same lengths in which every request has KV of its own. Both run in turn
with ours, and their columns say how many times as long they take.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from benchmarks.kernels import Limits
from benchmarks.machine import describe_machine
from radixserve.attention.build import build_metadata
from radixserve.attention.layer_kv import allocate_layers
from radixserve.kernels import AttentionPlan, Program, View, set_num_threads
from radixserve.types import pack_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

NUM_QO_HEADS, NUM_KV_HEADS, HEAD_DIM = 9, 3, 64
BLOCK_SIZE = 16
SCALE_BYTES = {"int8": 4}
"""Beside the numbers of a token's head."""
BEYOND_CACHES = 160 << 20
"""Bytes of KV that one pass reads, at least."""
MOST_FLOPS = 8e9
"""Multiply-adds of one pass at most: long prompts, which no memory slows, need few layers."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}


@dataclass(frozen=True)
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

    @property
    def flops(self) -> float:
        """Multiply-adds of a layer, two operations each."""
        seen = self.kv_len - (self.qo_len - 1) / 2
        return 4.0 * self.rows * seen * NUM_QO_HEADS * HEAD_DIM


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


LayerViews = tuple[View, ...]
"""K and V of a layer, and for int8 the scales of each."""


class Layers:
    """A case over enough layers, ready to run.

    Args:
        case: What to run.
        pools: The KV of each layer.
        shares: Whether the kernel looks for shared chunks.
    """

    def __init__(self, case: Case, pools: Sequence[LayerViews], *, shares: bool) -> None:
        self._case, self._num_layers = case, len(pools)
        self._metadata = build_metadata(
            qo_lens=[case.qo_len] * case.num_reqs,
            starts=[case.kv_len - case.qo_len] * case.num_reqs,
            tables=[pack_ids(table) for table in draw_tables(case)],
            block_size=BLOCK_SIZE,
        )
        self._plan = AttentionPlan(share=shares)
        self._program = Program()
        q = View(torch.randn(case.rows, NUM_QO_HEADS, HEAD_DIM))
        out = View(torch.empty(case.rows, NUM_QO_HEADS, HEAD_DIM))
        for k_pool, v_pool, *scales in pools:
            self._program.attention(q, k_pool, v_pool, self._plan, out, HEAD_DIM**-0.5, *scales)

    def run(self) -> float:
        """Return the seconds of a layer, with its part of planning the step."""
        start = time.perf_counter()
        self._plan.set(
            qo_indptr=self._metadata.qo_indptr,
            kv_indptr=self._metadata.kv_indptr,
            kv_indices=self._metadata.kv_indices,
            kv_lens=self._metadata.kv_lens,
            block_size=BLOCK_SIZE,
            num_qo_heads=NUM_QO_HEADS,
            num_kv_heads=NUM_KV_HEADS,
        )
        self._program.run(self._case.rows)
        return (time.perf_counter() - start) / self._num_layers


def draw_tables(case: Case) -> list[list[int]]:
    """Return block tables over scattered blocks, beginning alike as far as the case shares."""
    num_shared = case.shared // BLOCK_SIZE
    own = -(-case.kv_len // BLOCK_SIZE) - num_shared
    ids = np.random.default_rng(0).permutation(num_shared + own * case.num_reqs).tolist()
    shared, rest = ids[:num_shared], ids[num_shared:]
    return [shared + rest[i * own : (i + 1) * own] for i in range(case.num_reqs)]


def make_pools(case: Case, dtype: torch.dtype) -> list[LayerViews]:
    """Return the KV of enough layers, in memory as the engine's."""
    num_blocks = 1 + max(max(table) for table in draw_tables(case))
    shape = (num_blocks, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM)
    num_bytes = 2 * num_blocks * BLOCK_SIZE * NUM_KV_HEADS * HEAD_DIM * dtype.itemsize
    num_layers = max(1, min(-(-BEYOND_CACHES // num_bytes), int(MOST_FLOPS / case.flops)))
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


@dataclass(frozen=True)
class Result:
    """Median seconds of a layer."""

    ours: float
    share_off: float
    copies: float


def measure(case: Case, dtype: torch.dtype, *, repeats: int) -> Result:
    """Run a case, the same with sharing off, and with KV of each one's own, in turn."""
    pools = make_pools(case, dtype)
    apart = replace(case, shared=0)
    copies_pools = make_pools(apart, dtype) if case.shared else pools
    runs = (
        Layers(case, pools, shares=True),
        Layers(case, pools, shares=False),
        Layers(apart, copies_pools, shares=True),
    )
    for each in runs:
        each.run()
    times = [[each.run() for each in runs] for _ in range(repeats)]
    return Result(*(statistics.median(column) for column in zip(*times, strict=True)))


def print_row(case: Case, name: str, limits: Limits, result: Result) -> None:
    """Print one line of the table."""
    head_bytes = HEAD_DIM * DTYPES[name].itemsize + SCALE_BYTES.get(name, 0)
    num_bytes = 2.0 * case.kv_tokens * NUM_KV_HEADS * head_bytes
    floor = limits.floor_s(num_bytes, case.flops)
    print(
        f"{case.name:8} {name:9} {case.num_reqs:4} {case.kv_len:6} {result.ours * 1e6:10.1f}"
        f" {num_bytes / result.ours / 1e9:6.1f} {num_bytes / result.ours / limits.bytes_per_s:6.0%}"
        f" {case.flops / result.ours / 1e9:8.1f} {case.flops / result.ours / limits.flops:6.0%}"
        f" {floor / result.ours:6.0%} {result.share_off / result.ours:9.2f}"
        f" {result.copies / result.ours:7.2f}",
        flush=True,
    )


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.attention",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = sorted({case.name for case in CASES})
    parser.add_argument("--quick", action="store_true", help="short contexts, 2 repeats")
    parser.add_argument("--cases", nargs="+", choices=names, default=names)
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, help="default: one a core")
    args = parser.parse_args(argv)
    if args.quick:
        args.repeats = 2
    return args


def shorten(case: Case) -> Case:
    """Return a quarter of a case."""
    return replace(
        case,
        kv_len=case.kv_len // 4,
        qo_len=max(1, case.qo_len // 4),
        shared=case.shared // 4,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    args = parse_args(argv)
    if args.threads:
        set_num_threads(args.threads)
    limits = Limits.measure()
    print(describe_machine())
    print(limits)
    print(
        "case     KV        reqs context   us/layer   GB/s of mem  GFLOP/s of fma  floor"
        " share off  copies"
    )
    for case in CASES:
        for name in args.dtypes:
            if case.name in args.cases:
                chosen = shorten(case) if args.quick else case
                result = measure(chosen, DTYPES[name], repeats=args.repeats)
                print_row(chosen, name, limits, result)


if __name__ == "__main__":
    main()
