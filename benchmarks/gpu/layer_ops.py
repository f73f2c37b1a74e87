"""A layer's small operations: the kernels against plain torch in float32, and what they save."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.gpu.rig import DTYPE
from benchmarks.gpu.row import at_most, told
from radixserve.models.config import ModelSpec
from radixserve.models.ops import PLAIN_OPS
from radixserve.models.rotary import RotaryTable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from benchmarks.gpu.rig import Rig
    from benchmarks.gpu.row import Row
    from radixserve.models.ops import LayerOps

TOLERANCE = 1.5
"""Steps of bfloat16: one for a number that is rounded twice, as plain torch's are."""

EPS = 1e-5
DECODE_ROWS = 64


class LayerOpsSection:
    """The largest difference of each operation, and what a layer's take a decode of 64."""

    name = "layer operations"

    def run(self, rig: Rig) -> Iterator[Row]:
        """Yield a row for each operation, and one for the time of all."""
        spec = ModelSpec.from_hf(rig.sizes.big_model)
        worst: dict[str, float] = {}
        with torch.inference_mode():
            for num_rows in (1, DECODE_ROWS, rig.sizes.prefill_len):
                for name, steps in _differences(rig, _Rows.draw(spec, num_rows, rig.device)):
                    worst[name] = max(worst.get(name, 0.0), steps)
            for name, steps in worst.items():
                yield at_most(name, steps, "steps", TOLERANCE, note="of bfloat16, off float32")
            rows = _Rows.draw(spec, DECODE_ROWS, rig.device)
            ours, plain = (_layer_seconds(rig, ops, rows) for ops in (rig.ops, PLAIN_OPS))
        yield told("a layer's, 64 rows, in a graph", ours * 1e6, "us")
        yield told("the same in plain torch", plain * 1e6, "us")


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """What goes into a layer's operations."""

    share: Tensor
    residual: Tensor
    heads: Tensor
    gate_up: Tensor
    weight: Tensor
    head_weight: Tensor
    positions: Tensor
    table: RotaryTable
    spec: ModelSpec

    @classmethod
    def draw(cls, spec: ModelSpec, num_rows: int, device: torch.device) -> _Rows:
        generator = torch.Generator().manual_seed(num_rows)

        def noise(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(device, DTYPE)

        num_heads = spec.num_qo_heads + 2 * spec.num_kv_heads
        with device:
            table = RotaryTable(spec.rotary, head_dim=spec.head_dim, max_position=spec.max_position)
        positions = torch.randint(spec.max_position, (num_rows,), generator=generator)
        return cls(
            share=noise(num_rows, spec.hidden_size),
            residual=noise(num_rows, spec.hidden_size),
            heads=noise(num_rows, num_heads, spec.head_dim),
            gate_up=noise(num_rows, 2 * spec.intermediate_size),
            weight=noise(spec.hidden_size),
            head_weight=noise(spec.head_dim),
            positions=positions.to(device),
            table=table,
            spec=spec,
        )

    def copy(self, dtype: torch.dtype) -> _Rows:
        """Return the same numbers, for somebody to write over."""
        floats: dict[str, Any] = {
            field.name: value.to(dtype, copy=True)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), torch.Tensor) and value.dtype == DTYPE
        }
        return replace(self, **floats)

    def num_rotated(self) -> int:
        return self.spec.num_qo_heads + self.spec.num_kv_heads


def _results(ops: LayerOps, rows: _Rows) -> dict[str, Tensor]:
    """Do each operation once, on copies of what it writes over."""
    num_qo_heads = rows.spec.num_qo_heads
    normed, rotated, total = rows.heads.clone(), rows.heads.clone(), rows.residual.clone()
    ops.norm_heads_(normed[:, num_qo_heads : rows.num_rotated()], rows.head_weight, EPS)
    rotation = ops.rotation(rows.table, rows.positions)
    rotation.rotate_(rotated[:, : rows.num_rotated()], num_qo_heads)
    return {
        "norm": ops.norm(rows.residual, rows.weight, EPS),
        "norm of a sum": ops.add_norm(rows.share.clone(), total, rows.weight, EPS),
        "that sum": total,
        "norm of heads, in place": normed,
        "rotation of heads, in place": rotated,
        "silu(gate) * up": ops.silu_mul(rows.gate_up),
    }


def _differences(rig: Rig, rows: _Rows) -> Iterator[tuple[str, float]]:
    """Yield, by operation, the largest difference in steps of the number that it should be."""
    exact = _results(PLAIN_OPS, rows.copy(torch.float32))
    for name, ours in _results(rig.ops, rows).items():
        difference = (ours.float() - exact[name]).abs()
        steps = difference / (torch.finfo(DTYPE).eps * exact[name].abs().clamp(min=0.1))
        yield name, float(steps.max()) if ours.isfinite().all() else float("inf")


def _layer_seconds(rig: Rig, ops: LayerOps, drawn: _Rows) -> float:
    rows = drawn.copy(DTYPE)
    rotation = ops.rotation(rows.table, rows.positions)

    def layer() -> Tensor:
        ops.add_norm(rows.share, rows.residual, rows.weight, EPS)
        rotation.rotate_(rows.heads[:, : rows.num_rotated()], rows.spec.num_qo_heads)
        ops.add_norm(rows.share, rows.residual, rows.weight, EPS)
        return ops.silu_mul(rows.gate_up)

    return rig.device_seconds(rig.capture(layer))
