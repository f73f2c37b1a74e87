"""Whether the workspace that is allocated holds what the package's planner asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from benchmarks.gpu.batches import Batch
from benchmarks.gpu.rig import DTYPE
from benchmarks.gpu.row import SkippedError, at_most
from radixserve.attention.flashinfer import load_kernels
from radixserve.attention.flashinfer_args import KernelShape, workspace_bytes
from radixserve.attention.flashinfer_kernels import DecodeBuffers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.gpu.rig import Rig
    from benchmarks.gpu.row import Row
    from radixserve.attention.flashinfer_kernels import Kernels

SHAPE = KernelShape(
    num_qo_heads=32,
    num_kv_heads=8,
    head_dim=128,
    block_size=16,
    num_blocks=1 << 16,
    q_dtype=DTYPE,
    kv_dtype=DTYPE,
)

BATCHES = (
    *(Batch(num_reqs=n, kv_len=kv_len) for n in (1, 8, 64, 256) for kv_len in (100, 1024, 8192)),
    Batch(num_reqs=1, kv_len=32768),
    Batch(num_reqs=1, kv_len=8192, qo_len=512),
    Batch(num_reqs=16, kv_len=4096, qo_len=32),
    Batch(num_reqs=1, kv_len=8192, qo_len=8192),
)


class WorkspaceSection:
    """The largest share of our bound that the planner asks for, over many batches."""

    name = "workspace"

    def run(self, rig: Rig) -> Iterator[Row]:
        """Yield one row for batches as they come, one for those of graphs."""
        if rig.is_dry:
            raise SkippedError("only the package's own planner can tell, and it needs a GPU")
        kernels = load_kernels(rig.device)
        asker = _Asker(kernels, rig.device)
        eager = workspace_bytes(SHAPE, num_sms=kernels.num_sms, max_bucket=0)
        shares = [asker.prefill_bytes(batch) / eager for batch in BATCHES]
        decodes = [batch for batch in BATCHES if batch.qo_len == 1]
        shares += [asker.decode_bytes(batch) / eager for batch in decodes]
        yield at_most("asked for over allocated, eager", max(shares), "", 1.0)
        yield at_most(
            "asked for over allocated, graphs", max(map(asker.graph_share, decodes)), "", 1.0
        )


class _Asker:
    """Puts the question to wrappers, which plan nothing for it."""

    def __init__(self, kernels: Kernels, device: torch.device) -> None:
        self._kernels, self._device = kernels, device
        self._workspace = torch.zeros(1 << 20, dtype=torch.uint8, device=device)

    def prefill_bytes(self, batch: Batch) -> int:
        """Return what a prefill wrapper asks for."""
        return prefill_question(self._kernels.prefill(self._workspace), batch)

    def decode_bytes(self, batch: Batch) -> int:
        """Return what a decode wrapper asks for."""
        return decode_question(self._kernels.decode(self._workspace), batch)

    def graph_share(self, batch: Batch) -> float:
        """Return the same of a wrapper that can be captured, over what is allocated for it."""
        bucket = batch.num_reqs
        buffers = DecodeBuffers(
            torch.zeros(bucket + 1, dtype=torch.int32, device=self._device),
            torch.zeros(batch.num_blocks, dtype=torch.int32, device=self._device),
            torch.zeros(bucket, dtype=torch.int32, device=self._device),
        )
        asked = decode_question(self._kernels.decode(self._workspace, buffers), batch)
        return asked / workspace_bytes(SHAPE, num_sms=self._kernels.num_sms, max_bucket=bucket)


def prefill_question(wrapper: Any, batch: Batch) -> int:
    """Ask a prefill wrapper how many bytes of partial results a batch takes."""
    metadata = batch.metadata()
    floats, _ints = wrapper.workspace_size(
        metadata.qo_indptr,
        metadata.kv_indptr,
        metadata.kv_indices,
        metadata.kv_last_page_len,
        SHAPE.num_qo_heads,
        SHAPE.num_kv_heads,
        SHAPE.head_dim,
        SHAPE.block_size,
        causal=True,
        q_data_type=SHAPE.q_dtype,
        kv_data_type=SHAPE.kv_dtype,
        o_data_type=SHAPE.q_dtype,
    )
    return int(floats)


def decode_question(wrapper: Any, batch: Batch) -> int:
    """Ask a decode wrapper the same."""
    metadata = batch.metadata()
    floats, _ints = wrapper.workspace_size(
        metadata.kv_indptr,
        metadata.kv_indices,
        metadata.kv_last_page_len,
        SHAPE.num_qo_heads,
        SHAPE.num_kv_heads,
        SHAPE.head_dim,
        SHAPE.block_size,
        q_data_type=SHAPE.q_dtype,
        kv_data_type=SHAPE.kv_dtype,
        o_data_type=SHAPE.q_dtype,
    )
    return int(floats)
