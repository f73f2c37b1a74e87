"""The KV pool as FlashInfer's kernels read it, and the two calls that plan a wrapper."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from radixserve.attention.kv_writer import KVScale, KVWriter
from radixserve.attention.merge import Partial
from radixserve.device.transfer import pinned, to_device
from radixserve.errors import BackendUnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from radixserve.attention.flashinfer_args import DecodeArgs, KernelShape, PrefillArgs
    from radixserve.attention.flashinfer_kernels import DecodeWrapper, PrefillWrapper, Wrapper
    from radixserve.attention.layer_kv import LayerKV


class FlashInferPool:
    """The layers' K and V, their scales, and how they are written.

    Args:
        layers: One entry a layer, all of one shape.
        shape: What the kernels are planned for.
        scales: One a layer, of a pool of 8-bit floats; all 1 when None.
    Raises:
        BackendUnavailableError: layers or scales are not alike.
    """

    def __init__(
        self, layers: Sequence[LayerKV], shape: KernelShape, scales: Sequence[KVScale] | None
    ) -> None:
        scales = [KVScale()] * len(layers) if scales is None else scales
        _check(layers, shape, scales)
        self.shape = shape
        self.device = layers[0].k.device
        self._kv = [(layer.k, layer.v) for layer in layers]
        self._scales = [scale if shape.is_fp8 else None for scale in scales]
        self._writers = [
            KVWriter(layer, scale) for layer, scale in zip(layers, scales, strict=True)
        ]

    @property
    def num_layers(self) -> int:
        """Of the pool."""
        return len(self._kv)

    def write(self, layer_id: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Put new K and V into their slots, in the pool's precision.

        Mutates: those slots.
        """
        self._writers[layer_id].write(slots, k, v)

    def attend(self, layer_id: int, wrapper: Wrapper, q: Tensor) -> Tensor:
        """Return what a planned wrapper computes for one layer, in q's dtype."""
        out: Tensor = self._run(layer_id, wrapper, q, return_lse=False)
        return out.to(q.dtype)

    def attend_part(self, layer_id: int, wrapper: Wrapper, q: Tensor) -> Partial:
        """Return the same with the log-sum-exp, for a merge with other parts of the keys."""
        return Partial(*self._run(layer_id, wrapper, q, return_lse=True))

    def _run(self, layer_id: int, wrapper: Wrapper, q: Tensor, *, return_lse: bool) -> Any:
        rows = q.to(self.shape.q_dtype)
        scale = self._scales[layer_id]
        return wrapper.run(
            rows,
            self._kv[layer_id],
            k_scale=None if scale is None else scale.k,
            v_scale=None if scale is None else scale.v,
            out=torch.empty(rows.shape, dtype=rows.dtype, device=rows.device),
            return_lse=return_lse,
        )


def plan_prefill(
    wrapper: PrefillWrapper,
    args: PrefillArgs,
    shape: KernelShape,
    scale: float,
    device: torch.device,
) -> None:
    """Plan one prefill or one level. Dtypes and causality are said: their defaults are others.

    The package copies what it is given to the device without waiting: only pinned memory lets it.
    """
    wrapper.plan(
        pinned(args.qo_indptr, device),
        pinned(args.kv_indptr, device),
        to_device(args.kv_indices, device),
        pinned(args.last_page_len, device),
        shape.num_qo_heads,
        shape.num_kv_heads,
        shape.head_dim,
        shape.block_size,
        causal=args.causal,
        sm_scale=scale,
        q_data_type=shape.q_dtype,
        kv_data_type=shape.kv_dtype,
        o_data_type=shape.q_dtype,
    )


def plan_decode(
    wrapper: DecodeWrapper,
    args: DecodeArgs,
    shape: KernelShape,
    scale: float,
    device: torch.device,
) -> None:
    """Plan one decode of everybody."""
    wrapper.plan(
        pinned(args.indptr, device),
        to_device(args.indices, device),
        pinned(args.last_page_len, device),
        shape.num_qo_heads,
        shape.num_kv_heads,
        shape.head_dim,
        shape.block_size,
        sm_scale=scale,
        q_data_type=shape.q_dtype,
        kv_data_type=shape.kv_dtype,
        o_data_type=shape.q_dtype,
    )


def _check(layers: Sequence[LayerKV], shape: KernelShape, scales: Sequence[KVScale]) -> None:
    first = layers[0].k
    for layer in layers:
        for half in (layer.k, layer.v):
            if half.stride() != first.stride() or half.shape != first.shape:
                raise BackendUnavailableError("flashinfer needs K and V of one shape and stride")
            if half.dtype != shape.kv_dtype or half.device != first.device:
                raise BackendUnavailableError("flashinfer needs K and V of one dtype and device")
    if len(scales) != len(layers):
        counts = f"{len(scales)} for {len(layers)} layers"
        raise BackendUnavailableError(f"8-bit KV needs one pair of scales a layer; got {counts}")
