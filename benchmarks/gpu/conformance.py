"""FlashInfer against the plain attention in float32: every shape of kernel that is promised."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from benchmarks.gpu.batches import with_levels
from benchmarks.gpu.rig import DTYPE
from benchmarks.gpu.row import at_least, at_most
from radixserve.attention.build import build_metadata
from radixserve.attention.layer_kv import LayerKV
from radixserve.attention.reference import ReferenceAttention
from radixserve.config import CascadeConfig
from radixserve.types import pack_ids

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from benchmarks.gpu.rig import Rig
    from benchmarks.gpu.row import Row

TOLERANCE = 2e-2
"""Of an output whose inputs are standard normal: rows, weights and output are bfloat16."""

FP8 = torch.float8_e4m3fn
HEAD_DIMS = (64, 128)
NUM_KV_HEADS = 2
SHARED_LEN = 192
"""Tokens that the sharers of a cascade case have in common: whole blocks at every page size."""

GATE = CascadeConfig(min_sharers=2, min_shared_tokens=64)

QO_LENS = {"decode": (1,) * 5, "mixed": (1, 70, 1, 17, 1, 33)}
OWN_LENS = (5, 70, 1, 130, 3, 33)
"""Tokens beyond the shared ones, this step's included."""


@dataclass(frozen=True, slots=True)
class Case:
    """One shape of kernel, and one kind of batch."""

    page_size: int
    group_size: int
    head_dim: int
    kv_dtype: torch.dtype
    kind: str
    is_cascade: bool

    @property
    def name(self) -> str:
        """Where a difference was found."""
        levels = "levels" if self.is_cascade else "flat"
        return (
            f"page {self.page_size} group {self.group_size} head_dim {self.head_dim} {self.kind} "
            f"{levels}"
        )


class ConformanceSection:
    """The largest difference, for each head size, dtype of KV, and with levels and without."""

    name = "conformance"

    def run(self, rig: Rig) -> Iterator[Row]:
        """Yield one row a group of cases."""
        for kv_dtype, head_dim, is_cascade in itertools.product(
            (DTYPE, FP8), HEAD_DIMS, (False, True)
        ):
            shapes = itertools.product(rig.sizes.page_sizes, rig.sizes.group_sizes, QO_LENS)
            cases = [
                Case(page, group, head_dim, kv_dtype, kind, is_cascade)
                for page, group, kind in shapes
            ]
            worst, case = max((_difference(rig, case), case.name) for case in cases)
            kv = str(kv_dtype).removeprefix("torch.")
            levels = "levels" if is_cascade else "flat"
            what = f"head_dim {head_dim}, KV {kv}, {levels}: {len(cases)} cases"
            yield at_most(what, worst, "abs", TOLERANCE, note=f"worst: {case}")
        yield at_least("pools read back as they were written", _written_rightly(rig), "of 1", 1)


def _difference(rig: Rig, case: Case) -> float:
    """Return the largest difference of an output; infinite if one is not finite."""
    ours, exact = _outputs(rig, case)
    if not ours.isfinite().all():
        return float("inf")
    return float((ours.float() - exact).abs().max())


def _outputs(rig: Rig, case: Case) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(case.page_size * 100 + case.group_size)
    tables, starts = _tables(case)
    metadata = build_metadata(
        qo_lens=QO_LENS[case.kind],
        starts=starts,
        tables=[pack_ids(table) for table in tables],
        block_size=case.page_size,
    )
    if case.is_cascade:
        metadata = with_levels(metadata, GATE)
        assert metadata.levels, "the case was meant to be attended to by levels"
    shape = (1 + max(map(max, tables)), case.page_size, NUM_KV_HEADS, case.head_dim)
    exact_layer = LayerKV(k=_draw(shape, case, generator), v=_draw(shape, case, generator))
    layer = _on_device(rig, exact_layer, case.kv_dtype)
    num_qo_heads = NUM_KV_HEADS * case.group_size
    rows = metadata.num_tokens
    q = torch.randn(rows, num_qo_heads, case.head_dim, generator=generator).to(DTYPE)
    k, v = (_draw((rows, NUM_KV_HEADS, case.head_dim), case, generator) for _ in range(2))

    attention = rig.attention([layer], num_qo_heads)
    attention.plan(metadata)
    ours = attention.run(0, *(x.to(rig.device, DTYPE) for x in (q, k, v)))
    reference = ReferenceAttention([exact_layer], num_qo_heads=num_qo_heads)
    reference.plan(replace(metadata, levels=()))
    return ours.cpu(), reference.run(0, q.float(), k, v)


def _tables(case: Case) -> tuple[list[list[int]], list[int]]:
    """Return block tables that all begin alike, and where each request's new tokens start."""
    num_shared = SHARED_LEN // case.page_size
    kv_lens = [SHARED_LEN + own for own in OWN_LENS[: len(QO_LENS[case.kind])]]
    own_blocks = [-(-kv_len // case.page_size) - num_shared for kv_len in kv_lens]
    ids = torch.randperm(num_shared + sum(own_blocks), generator=torch.Generator().manual_seed(0))
    shared, rest = ids[:num_shared].tolist(), ids[num_shared:].tolist()
    tables = []
    for count in own_blocks:
        tables.append(shared + rest[:count])
        rest = rest[count:]
    starts = [n - qo for n, qo in zip(kv_lens, QO_LENS[case.kind], strict=True)]
    return tables, starts


def _draw(shape: tuple[int, ...], case: Case, generator: torch.Generator) -> Tensor:
    """Return float32 numbers that the pool's dtype can tell exactly."""
    return torch.randn(shape, generator=generator).to(case.kv_dtype).float()


def _on_device(rig: Rig, layer: LayerKV, dtype: torch.dtype) -> LayerKV:
    k, v = (half.to(rig.kv_dtype(dtype)).to(rig.device) for half in (layer.k, layer.v))
    return LayerKV(k=k, v=v)


def _written_rightly(rig: Rig) -> float:
    """Return 1.0 if the slots of a batch hold its K and V, and no other slot has changed."""
    pool = torch.zeros(8, 16, NUM_KV_HEADS, 64, dtype=DTYPE, device=rig.device)
    layer = LayerKV(k=pool, v=pool.clone())
    metadata = build_metadata(
        qo_lens=(3, 1), starts=(15, 4), tables=[pack_ids([5, 2]), pack_ids([7])], block_size=16
    )
    q, k, v = (torch.randn(4, heads, 64, device=rig.device).to(DTYPE) for heads in (4, 2, 2))
    attention = rig.attention([layer], 4)
    attention.plan(metadata)
    attention.run(0, q, k, v)
    expected = torch.zeros_like(pool)
    expected.flatten(0, 1)[metadata.slot_mapping.to(rig.device)] = k
    return float(torch.equal(layer.k, expected))
