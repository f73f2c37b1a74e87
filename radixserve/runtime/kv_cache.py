"""`KVCache`: the memory of the KV pool, one pair of tensors a layer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from radixserve.attention.backend import LayerKV
from radixserve.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.core.plan import BlockCopy

CACHE_LINE = 64
"""Bytes that memory is read in."""


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

    @classmethod
    def allocate(
        cls, spec: KVShape, num_blocks: int, block_size: int, dtype: torch.dtype
    ) -> KVCache:
        """Return a pool of `num_blocks` blocks, filled with zeros.

        The system hands out the memory as blocks are first written, so that a large pool costs
        nothing at start-up.

        Args:
            spec: The model's layers, KV heads and head size.
            num_blocks: Blocks, in each layer.
            block_size: Tokens a block.
            dtype: Of K and V.
        Raises:
            ConfigError: the memory cannot be had.
        """
        shape = (num_blocks, block_size, spec.num_kv_heads, spec.head_dim)

        try:
            return cls(allocate_layers(spec.num_layers, shape, dtype))
        except MemoryError as error:
            size = num_blocks * block_bytes(spec, block_size, dtype)
            raise ConfigError(
                f"a KV pool of {num_blocks} blocks takes {size} bytes, which this machine does "
                "not give; lower cache.num_blocks or cache.kv_cache_memory_bytes"
            ) from error

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool."""
        return self.layers[0].k.shape[0]

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
        source, target = _slots_of(copies, self.block_size)
        for layer in self.layers:
            for pool in (layer.k.flatten(0, 1), layer.v.flatten(0, 1)):
                pool.index_copy_(0, target, pool.index_select(0, source))


def allocate_layers(num_layers: int, shape: tuple[int, ...], dtype: torch.dtype) -> list[LayerKV]:
    """Return K and V of each layer, all zeros, in host memory that is taken as it is written.

    Raises:
        MemoryError: the system does not give it.
    """

    def half() -> torch.Tensor:
        return _lazy_zeros(shape, dtype)

    return [LayerKV(k=half(), v=half()) for _ in range(num_layers)]


def _lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return zeros whose pages are not touched yet, in huge pages where the system gives them.

    numpy takes large zeroed arrays straight from the system; torch would write every page. They
    begin with a cache line, so that a token's head does not lie in one line more than it fills.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    memory = np.zeros(num_bytes + CACHE_LINE, dtype=np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return torch.from_numpy(memory[start : start + num_bytes]).view(dtype).view(shape)


def _slots_of(copies: Sequence[BlockCopy], block_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    lens = np.array([copy.num_tokens for copy in copies])
    ends = np.cumsum(lens)
    offsets = np.arange(ends[-1]) - np.repeat(ends - lens, lens)
    blocks = np.array([[copy.source for copy in copies], [copy.target for copy in copies]])
    source, target = np.repeat(blocks * block_size, lens, axis=1) + offsets
    return torch.from_numpy(source), torch.from_numpy(target)
