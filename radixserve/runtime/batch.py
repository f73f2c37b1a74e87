"""A `StepPlan` becomes the tensors of one forward pass; beyond this point nobody knows a Req."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from radixserve.attention.build import build_metadata

if TYPE_CHECKING:
    from torch import Tensor

    from radixserve.attention.metadata import AttentionMetadata
    from radixserve.core.plan import StepPlan


@dataclass(frozen=True, slots=True, eq=False)
class BatchTensors:
    """One forward pass over T tokens, R of which are followed by a sampled one."""

    token_ids: Tensor
    """[T], int64."""
    positions: Tensor
    """[T], int64: each token's position in its sequence."""
    metadata: AttentionMetadata
    sample_rows: Tensor
    """[R], int64: the last row of each Req that samples, in the plan's order."""


def build_batch(plan: StepPlan, block_size: int) -> BatchTensors:
    """Return the tensors of a plan that has at least one Req.

    Raises:
        InvariantError: a Req computes nothing, or its block table is too short.
    Complexity: O(tokens + blocks).
    """
    reqs = plan.reqs
    metadata = build_metadata(
        qo_lens=[req.extend_len for req in reqs],
        starts=[req.start for req in reqs],
        tables=[req.block_table for req in reqs],
        block_size=block_size,
    )
    packed = bytearray().join(req.token_ids for req in reqs)
    does_sample = np.array([req.sampling is not None for req in reqs])
    last_rows = metadata.qo_indptr.numpy()[1:].astype(np.int64) - 1
    return BatchTensors(
        token_ids=torch.from_numpy(np.frombuffer(packed, dtype=np.int32).astype(np.int64)),
        positions=metadata.positions,
        metadata=metadata,
        sample_rows=torch.from_numpy(last_rows[does_sample]),
    )
