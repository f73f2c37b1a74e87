"""Packed linear maps: close to float64, and the same bits whatever else is computed with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from radixserve import kernels
from radixserve.kernels import PackedLinear, Program, View
from tests.kernels.machines import VARIANTS, machine

if TYPE_CHECKING:
    from torch import Tensor

    from radixserve.kernels.packed_linear import WeightDType

if not kernels.is_available():
    pytest.skip(kernels.why_not(), allow_module_level=True)

DTYPES: tuple[WeightDType, ...] = ("float32", "bfloat16", "int8")
CAPACITY = 64
EPSILON = 2.0**-24
GROUP = 128
"""Activations that share a scale where weights are int8."""


@dataclass(frozen=True)
class Case:
    """A linear map and rows to put through it."""

    num_outputs: int
    num_inputs: int
    dtype: WeightDType
    has_bias: bool
    kind: str
    """"store", "add" or "swiglu"."""
    seed: int

    def draw(self) -> Arrays:
        """Make the arrays."""
        generator = torch.Generator().manual_seed(self.seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator)

        weight = normal(self.num_outputs, self.num_inputs)
        bias = normal(self.num_outputs) if self.has_bias else torch.zeros(self.num_outputs)
        results = self.num_outputs // 2 if self.kind == "swiglu" else self.num_outputs
        packed = PackedLinear(View(weight), self.dtype, View(bias) if self.has_bias else None)
        # Columns of wider buffers: rows further apart than they are wide.
        x = normal(CAPACITY, self.num_inputs + 5)[:, 3 : self.num_inputs + 3]
        before = normal(CAPACITY, results + 2)
        return Arrays(self, packed, as_kept(weight, self.dtype), bias, x, before)


@dataclass(frozen=True)
class Arrays:
    """The arrays of a case."""

    case: Case
    packed: PackedLinear
    weight: Tensor
    """As the copy keeps it: float64."""
    bias: Tensor
    x: Tensor
    before: Tensor

    def run(self, rows: int, x: Tensor | None = None) -> Tensor:
        """Return the output's buffer after a run; rows beyond `rows` are as before."""
        buffer = self.before.clone()
        out = View(buffer[:, :-2])
        program = Program()
        if self.case.kind == "swiglu":
            program.linear_swiglu(View(self.x if x is None else x), self.packed, out)
        else:
            x_view = View(self.x if x is None else x)
            program.linear(x_view, self.packed, out, add=self.case.kind == "add")
        program.run(rows)
        return buffer

    def truth(self) -> tuple[Tensor, Tensor]:
        """Return what should come out, in float64, and how far off it may be."""
        sums = self.x.double() @ self.weight.T + self.bias
        sizes = self.x.double().abs() @ self.weight.abs().T + self.bias.abs() + 1
        error = sizes * EPSILON * (self.case.num_inputs + 8)
        if self.case.dtype == "int8":
            error = error + self.rounding()
        if self.case.kind == "store":
            return sums, error
        if self.case.kind == "add":
            return sums + self.before[:, :-2], error + self.before[:, :-2].abs() * 4 * EPSILON
        (gate, up), (gate_error, up_error) = sums.chunk(2, dim=1), error.chunk(2, dim=1)
        gated = functional.silu(gate)
        bound = 1.2 * gate_error * (up.abs() + up_error) + gated.abs() * (
            up_error + up.abs() * 1e-6
        )
        return gated * up, bound + 1e-6

    def rounding(self) -> Tensor:
        """Return how far off the sums may be as activations become 16-bit integers by groups."""
        steps = [
            part.abs().amax(dim=1, keepdim=True) / 65534 for part in torch.split(self.x, GROUP, 1)
        ]
        weights = [part.abs().sum(dim=1) for part in torch.split(self.weight, GROUP, 1)]
        pairs = zip(steps, weights, strict=True)
        return torch.stack([step.double() * 1.001 * weight for step, weight in pairs]).sum(dim=0)


def as_kept(weight: Tensor, dtype: str) -> Tensor:
    """Return the weights after they were stored in `dtype`, in float64."""
    if dtype == "bfloat16":
        return weight.bfloat16().double()
    if dtype == "float32":
        return weight.double()
    largest = weight.abs().amax(dim=1, keepdim=True)
    levels = (weight * (127 / largest)).round().clamp(-127, 127)
    return levels.double() * (largest / 127).double()


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Shapes around the panels' and the vectors' widths."""
    kind = draw(st.sampled_from(("store", "add", "swiglu")))
    half = draw(st.integers(1, 70))
    return Case(
        num_outputs=2 * half if kind == "swiglu" else half,
        num_inputs=draw(st.sampled_from((1, 2, 7, 16, 33, 64, 257))),
        dtype=draw(st.sampled_from(DTYPES)),
        has_bias=draw(st.booleans()),
        kind=kind,
        seed=draw(st.integers(0, 2**32 - 1)),
    )


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=25)
@given(case=cases())
def test_products_are_those_of_float64_to_rounding(variant: str, case: Case) -> None:
    arrays = case.draw()
    with machine(variant=variant):
        buffer = arrays.run(CAPACITY)
    wanted, tolerance = arrays.truth()
    assert ((buffer[:, :-2] - wanted).abs() <= tolerance).all()
    assert torch.equal(buffer[:, -2:], arrays.before[:, -2:]), "wrote beyond the columns"


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=15)
@given(case=cases(), rows=st.integers(0, CAPACITY))
def test_a_row_has_the_same_bits_in_any_batch(variant: str, case: Case, rows: int) -> None:
    arrays = case.draw()
    with machine(variant=variant):
        whole = arrays.run(CAPACITY)
        part = arrays.run(rows)
        moved = arrays.run(CAPACITY, x=arrays.x.roll(11, dims=0))
    assert same_bits(part[:rows], whole[:rows])
    assert torch.equal(part[rows:], arrays.before[rows:]), "wrote beyond the rows"
    if case.kind != "add":
        assert same_bits(moved[:, :-2], whole[:, :-2].roll(11, dims=0))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["store", "add", "swiglu"])
def test_every_small_number_of_rows_gives_the_bits_of_many(
    variant: str, dtype: WeightDType, kind: str
) -> None:
    arrays = Case(176, 70, dtype, has_bias=True, kind=kind, seed=1).draw()
    with machine(variant=variant):
        whole = arrays.run(CAPACITY)
        for rows in range(1, 20):
            assert same_bits(arrays.run(rows)[:rows], whole[:rows]), f"{rows} rows"


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 5, 64])
def test_threads_change_no_bit(variant: str, dtype: WeightDType, rows: int) -> None:
    arrays = Case(500, 130, dtype, has_bias=True, kind="swiglu", seed=2).draw()
    outcomes = []
    for threads in (1, 2, 5):
        with machine(variant=variant, threads=threads):
            outcomes.append(arrays.run(rows))
    assert same_bits(outcomes[0], outcomes[1])
    assert same_bits(outcomes[0], outcomes[2])


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_row_of_nan_or_infinity_spoils_no_other(variant: str, dtype: WeightDType) -> None:
    arrays = Case(40, 33, dtype, has_bias=False, kind="store", seed=3).draw()
    with machine(variant=variant):
        clean = arrays.run(8)
        spoilt_x = arrays.x.clone()
        spoilt_x[2, 5], spoilt_x[4, 0] = torch.nan, torch.inf
        spoilt = arrays.run(8, x=spoilt_x)
    others = [0, 1, 3, 5, 6, 7]
    assert same_bits(spoilt[others], clean[others])
    assert spoilt[2, :40].isnan().all()
    assert not spoilt[4, :40].isfinite().any()


def test_bfloat16_weights_are_taken_as_they_are() -> None:
    weight = torch.randn(20, 12).bfloat16()
    x = torch.randn(3, 12)
    outs = torch.zeros(2, 3, 20)
    dtypes: tuple[WeightDType, ...] = ("bfloat16", "float32")
    for out, dtype in zip(outs, dtypes, strict=True):
        program = Program()
        program.linear(View(x), PackedLinear(View(weight), dtype), View(out))
        program.run(3)
    assert same_bits(outs[0], outs[1])


def test_int8_keeps_rows_of_zeros_and_of_tiny_numbers_finite() -> None:
    weight = torch.zeros(3, 8)
    weight[1] = 1e-38
    weight[2] = torch.arange(8.0)
    out = torch.full((1, 3), torch.nan)
    program = Program()
    program.linear(View(torch.ones(1, 8)), PackedLinear(View(weight), "int8"), View(out))
    program.run(1)
    assert out[0, :2].abs().max() < 1e-30
    assert abs(out[0, 2] - 28) < 0.1


def test_packing_says_what_it_takes() -> None:
    packed = PackedLinear(View(torch.randn(33, 10)), "int8", View(torch.zeros(33)))
    assert packed.shape == (33, 10)
    assert packed.dtype == "int8"
    assert packed.num_bytes == 3 * 16 * (10 + 4 + 4), "three panels, their scales and their bias"
    assert PackedLinear(View(torch.randn(32, 10)), "bfloat16").num_bytes == 32 * 10 * 2


@pytest.mark.parametrize(
    ("weight", "dtype", "bias", "message"),
    [
        (
            torch.zeros(4),
            "float32",
            None,
            r"weight must be float32 or bfloat16 \[N, K\], got float32\[4\]",
        ),
        (torch.zeros(4, 2, dtype=torch.int64), "float32", None, r"got int64\[4, 2\]"),
        (torch.zeros(4, 0), "float32", None, r"got float32\[4, 0\]"),
        (
            torch.zeros(4, 2),
            "float64",
            None,
            "dtype must be float32, bfloat16 or int8, got float64",
        ),
        (torch.zeros(4, 2), "float32", torch.zeros(3), r"bias must be .* \[4\], got float32\[3\]"),
        (torch.full((4, 2), torch.inf), "int8", None, "row 0 is not finite"),
    ],
)
def test_packing_refuses_what_it_cannot_keep(
    weight: Tensor, dtype: WeightDType, bias: Tensor | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        PackedLinear(View(weight), dtype, None if bias is None else View(bias))


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two arrays are equal to the bit."""
    return torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))
