"""How near are the matrix products to what the machine can do?

    python -m benchmarks.kernels                         every shape, a minute or two
    python -m benchmarks.kernels --quick                 few rows, to see that it works
    python -m benchmarks.kernels --dtypes int8 --rows 1 32

The shapes are those of SmolLM2-135M. Two floors bound a product: its weights must be read from
memory once, and its multiply-adds must be done. Both are measured here, in the same run: the
columns say how much of the memory's bandwidth and of the multiply-add peak was reached, and `floor`
how much of the nearer one. Each shape is run over so many copies of its weights that no cache holds
them, as in a model. `torch` is its float32 product of the same shape over as many bytes, in turn
with ours: above 1, ours is faster.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from benchmarks.machine import describe_machine
from radixserve.kernels import (
    PackedLinear,
    Program,
    View,
    measure_peak_flops,
    measure_read_bandwidth,
    num_threads,
    set_num_threads,
    variant,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from radixserve.kernels.packed_linear import WeightDType

BEYOND_CACHES = 160 << 20
"""Bytes of weights that one pass reads, at least."""


@dataclass(frozen=True)
class Shape:
    """One linear map of the model."""

    name: str
    num_outputs: int
    num_inputs: int
    is_swiglu: bool = False


SHAPES = (
    Shape("qkv", 960, 576),
    Shape("output", 576, 576),
    Shape("gate_up", 3072, 576, is_swiglu=True),
    Shape("down", 576, 1536),
    Shape("logits", 49152, 576),
)


@dataclass(frozen=True)
class Limits:
    """What the machine can do, measured."""

    bytes_per_s: float
    flops: float

    @staticmethod
    def measure() -> Limits:
        """Measure now, with the threads in use."""
        return Limits(measure_read_bandwidth(), measure_peak_flops())

    def __str__(self) -> str:
        return (
            f"kernels {variant()}, {num_threads()} threads; "
            f"memory {self.bytes_per_s / 1e9:.1f} GB/s, "
            f"multiply-adds {self.flops / 1e9:.0f} GFLOP/s"
        )

    def floor_s(self, num_bytes: float, num_flops: float) -> float:
        """Return the seconds that nothing can beat."""
        return max(num_bytes / self.bytes_per_s, num_flops / self.flops)


class Products:
    """One shape over enough copies of its weights, ours and torch's.

    Args:
        shape: What to multiply.
        dtype: Of our weights; torch's are float32.
        capacity: The most rows.
    """

    def __init__(self, shape: Shape, dtype: WeightDType, capacity: int) -> None:
        weight = torch.randn(shape.num_outputs, shape.num_inputs) / shape.num_inputs**0.5
        first = PackedLinear(View(weight), dtype)
        self.num_bytes = first.num_bytes
        self.num_copies = -(-BEYOND_CACHES // self.num_bytes)
        self._x = torch.randn(capacity, shape.num_inputs)
        self._is_swiglu = shape.is_swiglu
        self._torch_weights = [weight.clone() for _ in range(-(-BEYOND_CACHES // weight.nbytes))]
        self._program = Program()
        x = View(self._x)
        out = View(torch.empty(capacity, shape.num_outputs // (2 if shape.is_swiglu else 1)))
        for copy in range(self.num_copies):
            packed = PackedLinear(View(weight), dtype) if copy else first
            if shape.is_swiglu:
                self._program.linear_swiglu(x, packed, out)
            else:
                self._program.linear(x, packed, out)

    def run(self, rows: int) -> float:
        """Return the seconds of one of our products."""
        return _seconds(lambda: self._program.run(rows)) / self.num_copies

    def run_torch(self, rows: int) -> float:
        """Return the seconds of one of torch's."""
        return _seconds(lambda: self._torch(rows)) / len(self._torch_weights)

    def _torch(self, rows: int) -> None:
        for weight in self._torch_weights:
            out = functional.linear(self._x[:rows], weight)
            if self._is_swiglu:
                gate, up = out.chunk(2, dim=-1)
                functional.silu(gate).mul_(up)


def _seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(products: Products, rows: int, *, repeats: int) -> tuple[float, float]:
    """Return the median seconds of our product and of torch's, measured in turn."""
    products.run(rows)
    products.run_torch(rows)
    pairs = [(products.run(rows), products.run_torch(rows)) for _ in range(repeats)]
    ours, torchs = zip(*pairs, strict=True)
    return statistics.median(ours), statistics.median(torchs)


def print_row(shape: Shape, dtype: str, rows: int, limits: Limits, result: Result) -> None:
    """Print one line of the table."""
    flops = 2.0 * rows * shape.num_outputs * shape.num_inputs
    floor = limits.floor_s(result.num_bytes, flops)
    print(
        f"{shape.name:8} {dtype:9} {rows:5} {result.seconds * 1e6:9.1f}"
        f" {result.num_bytes / result.seconds / 1e9:7.1f}"
        f" {result.num_bytes / result.seconds / limits.bytes_per_s:6.0%}"
        f" {flops / result.seconds / 1e9:8.1f} {flops / result.seconds / limits.flops:6.0%}"
        f" {floor / result.seconds:6.0%} {result.torch_seconds / result.seconds:7.2f}",
        flush=True,
    )


@dataclass(frozen=True)
class Result:
    """One measured product."""

    seconds: float
    torch_seconds: float
    num_bytes: int


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernels",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [shape.name for shape in SHAPES]
    parser.add_argument("--quick", action="store_true", help="1 and 32 rows, float32, 2 repeats")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 128, 512])
    parser.add_argument("--shapes", nargs="+", choices=names, default=names)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16", "int8"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, help="default: one a core")
    args = parser.parse_args(argv)
    if args.quick:
        args.rows, args.dtypes, args.repeats = [1, 32], ["float32"], 2
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    args = parse_args(argv)
    if args.threads:
        set_num_threads(args.threads)
    torch.set_num_threads(num_threads())
    limits = Limits.measure()
    print(describe_machine())
    print(limits)
    print("shape    weights    rows  us/product  GB/s  of mem  GFLOP/s of fma  floor   torch")
    for shape in SHAPES:
        for dtype in args.dtypes:
            if shape.name not in args.shapes:
                continue
            products = Products(shape, dtype, max(args.rows))
            for rows in args.rows:
                seconds, torch_seconds = measure(products, rows, repeats=args.repeats)
                result = Result(seconds, torch_seconds, products.num_bytes)
                print_row(shape, dtype, rows, limits, result)


if __name__ == "__main__":
    main()
