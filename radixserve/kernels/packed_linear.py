"""`PackedLinear`: weights in the order in which the kernels read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from radixserve.kernels.native import extension, require

if TYPE_CHECKING:
    from radixserve.kernels.view import View

WeightDType: TypeAlias = Literal["float32", "bfloat16", "int8"]


class PackedLinear:
    """A linear map's own copy of its weights; the originals are not needed afterwards.

    Args:
        weight: [N, K], float32 or bfloat16.
        dtype: What the copy is kept in. int8 has one scale an output: each output's largest weight
            becomes 127; activations then become 16-bit integers, 128 of them with one scale, whose
            products are summed exactly. Otherwise activations and sums are float32.
        bias: [N], float32 or bfloat16.
    Raises:
        ValueError: the arrays do not fit, or a weight that is to be int8 is not finite.
        MemoryError: there is no room for the copy.
    """

    def __init__(self, weight: View, dtype: WeightDType, bias: View | None = None) -> None:
        require()
        own_bias = None if bias is None else bias.native
        self.native = extension.PackedLinear(weight.native, dtype, own_bias)

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs: (N, K)."""
        return self.native.shape

    @property
    def dtype(self) -> str:
        """What the weights are kept in."""
        return self.native.dtype

    @property
    def num_bytes(self) -> int:
        """Memory that the copy takes, scales and bias included."""
        return self.native.num_bytes
