"""`View`: an array that kernels read or write in place."""

from __future__ import annotations

from typing import Any

from radixserve.kernels.native import extension, require


class View:
    """A CPU array of somebody else's, kept alive.

    Args:
        array: A torch tensor, a numpy array, or anything else with DLPack or a writable buffer:
            of float32, bfloat16, int8, uint8, int32 or int64, with 1 to 4 dimensions, contiguous
            in the innermost one; with 4, as pools have, in any order.
    Raises:
        TypeError: it is no such array, or lies on another device.
        ValueError: its dtype, dimensions or strides cannot be used.
    """

    def __init__(self, array: Any) -> None:
        require()
        detach = getattr(array, "detach", None)  # torch does not export what wants a gradient
        self.native = extension.View(array if detach is None else detach())

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements in each dimension."""
        return self.native.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements from one index of a dimension to the next; 1 where a dimension has one index."""
        return self.native.strides

    @property
    def dtype(self) -> str:
        """Such as "bfloat16"."""
        return self.native.dtype

    @property
    def pointer(self) -> int:
        """Address of the first element."""
        return self.native.pointer

    def __repr__(self) -> str:
        return repr(self.native)
