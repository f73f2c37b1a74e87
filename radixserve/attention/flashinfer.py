"""`FlashInferAttention`: paged attention over the shared blocks by FlashInfer's kernels.

    plan    decode of everybody    ->  tensor-core decode
            anything else          ->  FA2 paged prefill, causal
            enough is shared       ->  one prefill a level, merged: the shared part is read once
    run     K and V to their slots, then the planned kernels

`plan` writes its schedule into a wrapper's pinned buffer and leaves the copy to the device. While
the device is a step behind, the next plan must not write there: the wrappers of each kind are two,
taken in turn. A captured decode has but one, and waits for an event.
Source of that race: mini-sglang #103.

The package is imported here and nowhere else, and only when a backend is built.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from radixserve.attention.backend import check_heads, check_planned
from radixserve.attention.flashinfer_args import (
    FP8_DTYPES,
    DecodeArgs,
    KernelShape,
    PrefillArgs,
    decode_args,
    is_pure_decode,
    level_args,
    prefill_args,
    workspace_bytes,
)
from radixserve.attention.flashinfer_graph import FlashInferGraphAttention
from radixserve.attention.flashinfer_kernels import Kernels, PackageKernels
from radixserve.attention.flashinfer_pool import FlashInferPool, plan_decode, plan_prefill
from radixserve.attention.levels import find_levels
from radixserve.attention.merge import Partial
from radixserve.config import CascadeConfig
from radixserve.device.transfer import to_device
from radixserve.errors import BackendUnavailableError, InvariantError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from radixserve.attention.flashinfer_kernels import DecodeWrapper, PrefillWrapper, Wrapper
    from radixserve.attention.kv_writer import KVScale
    from radixserve.attention.layer_kv import LayerKV
    from radixserve.attention.metadata import AttentionMetadata, CascadeLevel


CASCADE = CascadeConfig()
FLAT = CascadeConfig(max_levels=1)

TURNS = (0, 1)
"""A plan is written while the one before it may still be on its way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashInferOptions:
    """What else than pool and heads decides how the kernels run."""

    q_dtype: torch.dtype | None = None
    """float16 or bfloat16; when None, the pool's, and bfloat16 over a pool of 8-bit floats."""
    kv_scales: Sequence[KVScale] | None = None
    """One a layer, of a pool of 8-bit floats; all 1 when None."""
    cascade: CascadeConfig = CASCADE
    """When what requests share is read once for all of them."""


DEFAULT_OPTIONS = FlashInferOptions()


class FlashInferAttention:
    """Paged attention on a CUDA device, for any mix of prefill chunks and decodes.

    Args:
        layers: The KV pool, one entry a layer; float16, bfloat16, or 8-bit floats.
        num_qo_heads: Query heads; a multiple of the pool's KV heads.
        scale: Factor on the scores; `head_dim ** -0.5` when None.
        options: What else there is to choose.
        kernels: Builds the wrappers; the package's own when None.
    Raises:
        BackendUnavailableError: there is no GPU or no package, or no kernel for this pool.
    """

    def __init__(
        self,
        layers: Sequence[LayerKV],
        *,
        num_qo_heads: int,
        scale: float | None = None,
        options: FlashInferOptions = DEFAULT_OPTIONS,
        kernels: Kernels | None = None,
    ) -> None:
        check_heads(layers, num_qo_heads)
        self._device = layers[0].k.device
        self._kernels = load_kernels(self._device) if kernels is None else kernels
        self._shape = _shape_of(layers[0], num_qo_heads, options.q_dtype)
        self._scale = self._shape.head_dim**-0.5 if scale is None else scale
        self._pool = FlashInferPool(layers, self._shape, options.kv_scales)
        self._cascade = options.cascade if self._shape.can_merge else FLAT
        self._workspace = self._new_workspace(max_bucket=0)
        self._graph_workspace = self._workspace
        self._graph_indices = torch.empty(0, dtype=torch.int32, device=self._device)
        num_levels = self._cascade.max_levels
        self._prefills = [
            [self._kernels.prefill(self._workspace) for _ in range(num_levels)] for _ in TURNS
        ]
        self._decodes = [self._kernels.decode(self._workspace) for _ in TURNS]
        self._turn = 0
        self._planned: list[Wrapper] = []
        self._slots = torch.empty(0, dtype=torch.int64, device=self._device)
        if num_levels > 1:
            self._try_merge()

    @property
    def num_layers(self) -> int:
        """Of the pool."""
        return self._pool.num_layers

    def levels_of(self, metadata: AttentionMetadata) -> tuple[CascadeLevel, ...]:
        """Return the levels by which a batch will be attended to; none where that is flat."""
        if metadata.levels and len(metadata.levels) <= self._cascade.max_levels:
            return metadata.levels
        return find_levels(metadata, self._cascade)

    def plan(self, metadata: AttentionMetadata) -> None:
        """Take in a batch: divide it among thread blocks, send its tables to the device.

        Raises:
            InvariantError: the batch is empty.
        Mutates: the plan held so far; the pool is not touched.
        Complexity: O(blocks) on the host, and one copy of them.
        """
        if metadata.num_reqs == 0:
            raise InvariantError(0, "an empty batch has no plan")
        self._turn = 1 - self._turn
        if levels := self.levels_of(metadata):
            self._planned = [self._prefill(i, args) for i, args in enumerate(level_args(levels))]
        elif is_pure_decode(metadata):
            self._planned = [self._decode(decode_args(metadata))]
        else:
            self._planned = [self._prefill(0, prefill_args(metadata))]
        self._slots = to_device(metadata.slot_mapping, self._device)

    def run(self, layer_id: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write this layer's new K and V to their slots and attend over the whole of each request.

        Args:
            layer_id: Which layer of the pool, from 0.
            q: [num_tokens, num_qo_heads, head_dim], rotated.
            k: [num_tokens, num_kv_heads, head_dim], rotated.
            v: [num_tokens, num_kv_heads, head_dim].
        Returns:
            [num_tokens, num_qo_heads, head_dim], in q's dtype.
        Raises:
            InvariantError: nothing is planned, or another number of tokens.
        Mutates:
            the pool's slots named by the planned `slot_mapping`.
        """
        check_planned(len(self._slots), q)
        self._pool.write(layer_id, self._slots, k, v)
        if len(self._planned) == 1:
            return self._pool.attend(layer_id, self._planned[0], q)
        partials = (self._pool.attend_part(layer_id, part, q) for part in self._planned)
        merged = next(partials)
        for partial in partials:
            merged = self._kernels.merge(merged, partial)
        return merged.out.to(q.dtype)

    def for_graph(
        self, bucket: int, *, max_blocks_per_req: int | None = None
    ) -> FlashInferGraphAttention:
        """Return the attention of one CUDA graph of `bucket` decodes, over the same pool.

        Ask for the largest bucket first: the smaller ones share its memory.

        Args:
            bucket: Rows of every batch, after padding.
            max_blocks_per_req: Longest block table; the whole pool when None.
        """
        num_indices = bucket * (max_blocks_per_req or self._shape.num_blocks)
        if len(self._graph_indices) < num_indices:
            empty = self._graph_indices
            self._graph_indices = empty.new_empty(num_indices)
        needed = workspace_bytes(self._shape, num_sms=self._kernels.num_sms, max_bucket=bucket)
        if len(self._graph_workspace) < needed:
            self._graph_workspace = self._new_workspace(max_bucket=bucket)
        return FlashInferGraphAttention(
            self._pool,
            self._kernels,
            bucket=bucket,
            scale=self._scale,
            workspace=self._graph_workspace,
            indices=self._graph_indices[:num_indices],
        )

    def _new_workspace(self, *, max_bucket: int) -> Tensor:
        size = workspace_bytes(self._shape, num_sms=self._kernels.num_sms, max_bucket=max_bucket)
        return torch.zeros(size, dtype=torch.uint8, device=self._device)

    def _prefill(self, place: int, args: PrefillArgs) -> PrefillWrapper:
        wrapper = self._prefills[self._turn][place]
        plan_prefill(wrapper, args, self._shape, self._scale, self._device)
        return wrapper

    def _decode(self, args: DecodeArgs) -> DecodeWrapper:
        wrapper = self._decodes[self._turn]
        plan_decode(wrapper, args, self._shape, self._scale, self._device)
        return wrapper

    def _try_merge(self) -> None:
        """Merge two rows of nothing: what is compiled or loaded on first use is there then."""
        heads, shape = self._shape.num_qo_heads, self._shape
        out = torch.zeros(1, heads, shape.head_dim, dtype=shape.q_dtype, device=self._device)
        lse = torch.zeros(1, heads, dtype=torch.float32, device=self._device)
        self._kernels.merge(Partial(out, lse), Partial(out, lse))


def _shape_of(layer: LayerKV, num_qo_heads: int, q_dtype: torch.dtype | None) -> KernelShape:
    num_blocks, block_size, num_kv_heads, head_dim = layer.k.shape
    kv_dtype = layer.k.dtype
    return KernelShape(
        num_qo_heads=num_qo_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        num_blocks=num_blocks,
        q_dtype=q_dtype or (torch.bfloat16 if kv_dtype in FP8_DTYPES else kv_dtype),
        kv_dtype=kv_dtype,
    )


def load_kernels(device: torch.device) -> Kernels:
    """Return the package's kernels for a device.

    Raises:
        BackendUnavailableError: it is no CUDA device, or the package is missing or broken.
    """
    package = load_package(device)
    num_sms = torch.cuda.get_device_properties(device).multi_processor_count
    return PackageKernels(package, num_sms=num_sms, make_event=torch.cuda.Event)


def load_package(device: torch.device) -> Any:
    """Return the package itself, if it can run on a device.

    Its norms are asked for in CUDA C++, unless the environment has an opinion: they can be built
    before, and the other ones, in a language of their own, are compiled whenever a process starts.

    Raises:
        BackendUnavailableError: it is no CUDA device, or the package is missing or broken.
    Mutates: the environment of this process.
    """
    if device.type != "cuda":
        why = "no NVIDIA GPU was found" if not torch.cuda.is_available() else f"KV is on {device}"
        raise BackendUnavailableError(
            f"flashinfer runs on a CUDA device only, and {why}; use --attention-backend cpu"
        )
    os.environ.setdefault("FLASHINFER_USE_CUDA_NORM", "1")
    try:
        import flashinfer
    except Exception as error:  # a broken CUDA installation shows as any of many
        raise BackendUnavailableError(
            f"the package flashinfer cannot be imported ({error}); install radixserve[cuda], or "
            "use --attention-backend reference"
        ) from error
    return flashinfer
