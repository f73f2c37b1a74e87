"""Batches to measure with, as plans, as metadata and as pools of just their size."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from radixserve.attention.build import build_metadata
from radixserve.attention.levels import find_levels
from radixserve.config import CascadeConfig
from radixserve.core.plan import SamplingState, ScheduledReq, StepPlan
from radixserve.runtime.kv_cache import KVCache
from radixserve.types import ReqId, SamplingParams, pack_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.gpu.rig import Rig
    from benchmarks.gpu.sizes import Sizes
    from radixserve.attention.metadata import AttentionMetadata
    from radixserve.runtime.kv_cache import KVShape

BLOCK_SIZE = 16
GREEDY = SamplingState(SamplingParams(temperature=0.0), output_len=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """`num_reqs` requests that each compute `qo_len` tokens at the end of `kv_len`."""

    num_reqs: int
    kv_len: int
    qo_len: int = 1
    shared_len: int = 0
    """Leading tokens whose blocks are the same for all of them."""
    block_size: int = BLOCK_SIZE

    @classmethod
    def of_sharers(cls, sizes: Sizes) -> Batch:
        """Return decodes that share a long beginning."""
        return cls(
            num_reqs=sizes.num_sharers,
            kv_len=sizes.shared_len + sizes.own_len,
            shared_len=sizes.shared_len,
        )

    @property
    def name(self) -> str:
        """What the report calls it."""
        if self.shared_len:
            return f"{self.num_reqs} x {self.shared_len} shared"
        return f"batch {self.num_reqs}, context {self.kv_len}"

    @property
    def num_blocks(self) -> int:
        """Blocks that the requests have together."""
        shared = self.shared_len // self.block_size
        return shared + self.num_reqs * (-(-self.kv_len // self.block_size) - shared)

    def tables(self) -> list[list[int]]:
        """Return block tables over scattered blocks."""
        generator = torch.Generator().manual_seed(0)
        ids = torch.randperm(self.num_blocks, generator=generator).tolist()
        num_shared = self.shared_len // self.block_size
        shared, rest = sorted(ids[:num_shared]), ids[num_shared:]
        own = len(rest) // self.num_reqs
        tables = [shared + rest[i * own : (i + 1) * own] for i in range(self.num_reqs)]
        return sorted(tables, key=pack_ids)  # as the runtime orders them

    def metadata(self) -> AttentionMetadata:
        """Return the batch without levels."""
        return build_metadata(
            qo_lens=[self.qo_len] * self.num_reqs,
            starts=[self.kv_len - self.qo_len] * self.num_reqs,
            tables=[pack_ids(table) for table in self.tables()],
            block_size=self.block_size,
        )

    def plan(self) -> StepPlan:
        """Return the same as a step in which every request samples greedily."""
        start = self.kv_len - self.qo_len
        reqs = (
            ScheduledReq(
                ReqId(f"r{row}"), pack_ids([row % 256] * self.qo_len), start, table, GREEDY
            )
            for row, table in enumerate(map(pack_ids, self.tables()))
        )
        return StepPlan(1, tuple(reqs))


def following(plan: StepPlan) -> StepPlan:
    """Return the same decodes once more, with the tokens that the plan's samples."""
    rows = (req._replace(takes=row) for row, req in enumerate(plan.reqs))
    return StepPlan(plan.step + 1, tuple(rows), follows=plan.step)


def with_levels(
    metadata: AttentionMetadata, gate: CascadeConfig | None = None
) -> AttentionMetadata:
    """Return the batch with the levels that a gate finds."""
    return replace(metadata, levels=find_levels(metadata, gate or CascadeConfig()))


def new_pool(rig: Rig, shape: KVShape, num_blocks: int, *, block_size: int = BLOCK_SIZE) -> KVCache:
    """Return a pool on the device with a dummy block beside; all zeros."""
    return KVCache.allocate(
        shape, num_blocks, block_size, torch.bfloat16, device=rig.device, num_dummies=1
    )


def fill(pool: KVCache) -> KVCache:
    """Fill a pool with noise: equal keys would be an easy case.

    Mutates: all of it.
    """
    for layer in pool.layers:
        layer.k.normal_()
        layer.v.normal_()
    return pool


def step(tokens: Sequence[int], start: int, table: Sequence[int], row: int) -> ScheduledReq:
    """Return one request's share of a step."""
    return ScheduledReq(ReqId(f"r{row}"), pack_ids(tokens), start, pack_ids(table), GREEDY)
