"""The matrix products of a model's linear maps, beside torch's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch.nn import functional

from radixserve.bench.kernels.heads import Heads
from radixserve.bench.kernels.limits import Measured, medians_in_turn, num_copies, seconds_of
from radixserve.kernels import PackedLinear, Program, View

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from radixserve.kernels.packed_linear import WeightDType


class LinearSizes(Heads, Protocol):
    """What of a model decides its linear maps."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Shape:
    """One linear map of a model."""

    name: str
    num_outputs: int
    num_inputs: int
    is_swiglu: bool = False


def shapes_of(model: LinearSizes) -> tuple[Shape, ...]:
    """Return the linear maps of one layer, fused as they are run, and the output head."""
    heads = model.num_qo_heads + 2 * model.num_kv_heads
    return (
        Shape("qkv", heads * model.head_dim, model.hidden_size),
        Shape("output", model.hidden_size, model.num_qo_heads * model.head_dim),
        Shape("gate_up", 2 * model.intermediate_size, model.hidden_size, is_swiglu=True),
        Shape("down", model.hidden_size, model.intermediate_size),
        Shape("head", model.vocab_size, model.hidden_size),
    )


def measure_products(
    shape: Shape, dtype: WeightDType, rows: Sequence[int], *, repeats: int
) -> Iterator[Measured]:
    """Yield what a map's product takes for each number of rows, ours in turn with torch's.

    Each pass goes over so many copies of the weights that no cache holds them, as in a model.
    """
    products = _Products(shape, dtype, max(rows))
    for count in rows:
        ours, torchs = medians_in_turn(
            (lambda n=count: products.run(n), lambda n=count: products.run_torch(n)),  # type: ignore[misc]
            repeats=repeats,
        )
        yield Measured(
            shape.name,
            dtype,
            count,
            context=0,
            seconds=ours,
            num_bytes=products.num_bytes,
            num_flops=2.0 * count * shape.num_outputs * shape.num_inputs,
            ratios={"torch float32": torchs / ours},
        )


class _Products:
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
        self._num_copies = num_copies(self.num_bytes)
        self._x = torch.randn(capacity, shape.num_inputs)
        self._is_swiglu = shape.is_swiglu
        self._torch_weights = [weight.clone() for _ in range(num_copies(weight.nbytes))]
        self._program = Program()
        x = View(self._x)
        out = View(torch.empty(capacity, shape.num_outputs // (2 if shape.is_swiglu else 1)))
        for copy in range(self._num_copies):
            packed = PackedLinear(View(weight), dtype) if copy else first
            if shape.is_swiglu:
                self._program.linear_swiglu(x, packed, out)
            else:
                self._program.linear(x, packed, out)

    def run(self, rows: int) -> float:
        """Return the seconds of one of our products."""
        return seconds_of(lambda: self._program.run(rows)) / self._num_copies

    def run_torch(self, rows: int) -> float:
        """Return the seconds of one of torch's."""
        return seconds_of(lambda: self._torch(rows)) / len(self._torch_weights)

    def _torch(self, rows: int) -> None:
        for weight in self._torch_weights:
            out = functional.linear(self._x[:rows], weight)
            if self._is_swiglu:
                gate, up = out.chunk(2, dim=-1)
                functional.silu(gate).mul_(up)
