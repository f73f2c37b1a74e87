"""`KVCache`: the memory of the KV pool, one pair of tensors a layer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import torch

from radixserve.attention.backend import LayerKV
from radixserve.errors import ConfigError, InvariantError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from radixserve.core.plan import BlockCopy

CACHE_LINE = 64
"""Bytes that memory is read in."""

CPU = torch.device("cpu")


class KVShape(Protocol):
    """What of a model decides the size of its KV; every ModelSpec has it."""

    @property
    def num_layers(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...


def block_bytes(spec: KVShape, block_size: int, dtype: torch.dtype) -> int:
    """Return the bytes of one block: K and V of `block_size` tokens in every layer."""
    return 2 * spec.num_layers * block_size * spec.num_kv_heads * spec.head_dim * dtype.itemsize


@dataclass(frozen=True, slots=True, eq=False)
class KVCache:
    """The KV pool: the same block ids in every layer. Who owns which block is not known here."""

    layers: list[LayerKV]
    num_blocks: int
    """Blocks that may be owned; the layers hold the dummy block besides, after the last of them."""

    @classmethod
    def allocate(
        cls,
        spec: KVShape,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        *,
        device: torch.device = CPU,
        num_dummies: Literal[0, 1] = 0,
    ) -> KVCache:
        """Return a pool of `num_blocks` blocks, filled with zeros.

        Host memory is handed out as blocks are first written, so that a large pool costs nothing
        at start-up.

        Args:
            spec: The model's layers, KV heads and head size.
            num_blocks: Blocks, in each layer.
            block_size: Tokens a block.
            dtype: Of K and V.
            device: Where the pool is.
            num_dummies: One if padded rows need a block that nobody owns.
        Raises:
            ConfigError: the memory cannot be had.
        """
        shape = (num_blocks + num_dummies, block_size, spec.num_kv_heads, spec.head_dim)

        try:
            layers = allocate_layers(spec.num_layers, shape, dtype, make_zeros=zeros_on(device))
        except (MemoryError, torch.OutOfMemoryError) as error:
            size = num_blocks * block_bytes(spec, block_size, dtype)
            raise ConfigError(
                f"a KV pool of {num_blocks} blocks takes {size} bytes, which this machine does "
                "not give; lower cache.num_blocks or cache.kv_cache_memory_bytes"
            ) from error
        return cls(layers, num_blocks)

    @property
    def dummy_block(self) -> int:
        """The block that nobody owns: padded rows are written to it.

        Raises:
            InvariantError: the pool was made without one.
        """
        if self.num_blocks == self.layers[0].k.shape[0]:
            raise InvariantError(0, "the pool has no dummy block")
        return self.num_blocks

    @property
    def device(self) -> torch.device:
        """Where the pool is."""
        return self.layers[0].k.device

    @property
    def block_size(self) -> int:
        """Tokens a block."""
        return self.layers[0].k.shape[1]

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Copy the first tokens of some blocks to others, in every layer.

        Mutates: the first `num_tokens` slots of each target.
        Complexity: O(copied tokens * layers).
        """
        if not copies:
            return
        slots = torch.from_numpy(_slots_of(copies, self.block_size))
        source, target = slots.to(self.device, non_blocking=True)
        for layer in self.layers:
            for half in (layer.k, layer.v):
                pool = movable(half).flatten(0, 1)
                pool.index_copy_(0, target, pool.index_select(0, source))


def movable(half: torch.Tensor) -> torch.Tensor:
    """Return K or V as a view that torch can select from: of 8-bit floats it cannot."""
    return half.view(torch.uint8) if half.dtype.itemsize == 1 else half


def allocate_layers(
    num_layers: int,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    *,
    make_zeros: Callable[[int], torch.Tensor] | None = None,
) -> list[LayerKV]:
    """Return K and V of each layer, all zeros.

    Args:
        num_layers: How many.
        shape: Of K and of V.
        dtype: Of both.
        make_zeros: Returns so many bytes of 0; when None, of host memory that is taken as it is
            written.
    Raises:
        MemoryError: the system does not give it.
        OutOfMemoryError: the device does not.
    """
    make = _lazy_zeros if make_zeros is None else make_zeros
    num_bytes = math.prod(shape) * dtype.itemsize

    def half() -> torch.Tensor:
        return make(num_bytes).view(dtype).view(shape)

    return [LayerKV(k=half(), v=half()) for _ in range(num_layers)]


def zeros_on(device: torch.device) -> Callable[[int], torch.Tensor] | None:
    """Return what makes bytes of 0 on a device; None where `allocate_layers` has its own way."""
    if device.type == "cpu":
        return None
    return lambda num_bytes: torch.zeros(num_bytes, dtype=torch.uint8, device=device)


def _lazy_zeros(num_bytes: int) -> torch.Tensor:
    """Return zeros whose pages are not touched yet, in huge pages where the system gives them.

    numpy takes large zeroed arrays straight from the system; torch would write every page. They
    begin with a cache line, so that a token's head does not lie in one line more than it fills.
    """
    memory = np.zeros(num_bytes + CACHE_LINE, dtype=np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return torch.from_numpy(memory[start : start + num_bytes])


def _slots_of(copies: Sequence[BlockCopy], block_size: int) -> NDArray[np.int64]:
    """Return [2, copied tokens]: the slots to read, and the slots to write."""
    lens = np.array([copy.num_tokens for copy in copies])
    ends = np.cumsum(lens)
    offsets = np.arange(ends[-1]) - np.repeat(ends - lens, lens)
    blocks = np.array([[copy.source for copy in copies], [copy.target for copy in copies]])
    slots: NDArray[np.int64] = np.repeat(blocks * block_size, lens, axis=1) + offsets
    return slots
