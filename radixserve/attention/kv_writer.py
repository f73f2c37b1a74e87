"""`KVWriter`: a step's new K and V go to their slots, in the pool's own precision.

By one `index_copy_` into the flattened pool and not by FlashInfer's append: that one needs the
batch's tables again instead of the slots that are known already, copies bits without a look at
their dtype, has no scales, and is one more kernel to be compiled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from radixserve.attention.flashinfer_args import FP8_DTYPES

if TYPE_CHECKING:
    from torch import Tensor

    from radixserve.attention.layer_kv import LayerKV


class KVScale(NamedTuple):
    """What one layer's stored K and V are multiplied by to be K and V again."""

    k: float = 1.0
    v: float = 1.0


class KVWriter:
    """Writes to one layer of the pool.

    What does not fit into 8 bits becomes the largest number that does; NaN stays NaN.

    Args:
        layer: The pool's share of the layer.
        scale: Of a pool of 8-bit floats; a wider one has none.
    """

    def __init__(self, layer: LayerKV, scale: KVScale) -> None:
        self._dtype = layer.k.dtype
        self._scale = scale
        self._is_fp8 = self._dtype in FP8_DTYPES
        self._k, self._v = (half.view(half.shape[0] * half.shape[1], -1) for half in layer.tensors)

    def write(self, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Put each row's K and V where its slot is.

        Args:
            slots: [rows], int64, on the pool's device.
            k: [rows, num_kv_heads, head_dim].
            v: [rows, num_kv_heads, head_dim].
        Mutates: those slots of the pool.
        """
        self._k.index_copy_(0, slots, self._stored(k, self._scale.k))
        self._v.index_copy_(0, slots, self._stored(v, self._scale.v))

    def _stored(self, rows: Tensor, scale: float) -> Tensor:
        rows = rows.reshape(len(rows), -1)
        if not self._is_fp8:
            return rows.to(self._dtype)
        largest = torch.finfo(self._dtype).max
        return (rows.float() / scale).clamp(-largest, largest).to(self._dtype).view(torch.uint8)
