"""What the device can do at most, measured in the same run: copies and matrix products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from benchmarks.gpu.rig import DTYPE
from benchmarks.gpu.row import told

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.gpu.rig import Rig
    from benchmarks.gpu.row import Row


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds that speeds are held against."""

    bytes_per_s: float
    flops: float

    @classmethod
    def measure(cls, rig: Rig) -> Limits:
        """Copy once through memory, and multiply two matrices of a model's size."""
        source = torch.zeros(rig.sizes.copy_bytes, dtype=torch.uint8, device=rig.device)
        target = torch.empty_like(source)
        copy_s = rig.device_seconds(lambda: target.copy_(source))
        rows, inner, columns = rig.sizes.matmul
        a = torch.randn(rows, inner, device=rig.device).to(DTYPE)
        b = torch.randn(columns, inner, device=rig.device).to(DTYPE)
        product_s = rig.device_seconds(lambda: torch.nn.functional.linear(a, b))
        return cls(2 * len(source) / copy_s, 2.0 * rows * inner * columns / product_s)


class LimitsSection:
    """Tells the bounds."""

    name = "limits"

    def run(self, rig: Rig) -> Iterator[Row]:
        """Yield both."""
        limits = Limits.measure(rig)
        yield told("copy, bytes read and written", limits.bytes_per_s / 1e9, "GB/s")
        yield told("matrix product, bfloat16", limits.flops / 1e12, "TFLOP/s")
