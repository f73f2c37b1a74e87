"""`HostKV`: the memory of the swap space, laid out like the KV pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from radixserve.attention.layer_kv import LayerKV, allocate_layers
from radixserve.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from radixserve.core.plan import BlockSwap
    from radixserve.runtime.kv_cache import KVCache


@dataclass(frozen=True, slots=True, eq=False)
class HostKV:
    """Blocks in host memory. Whose KV is in which is not known here."""

    layers: list[LayerKV]

    @classmethod
    def allocate_beside(cls, pool: KVCache, num_blocks: int) -> HostKV:
        """Return a swap space of `num_blocks` blocks like those of `pool`, filled with zeros.

        The system hands out the memory as blocks are first written.

        Raises:
            ConfigError: the memory cannot be had.
        """
        like = pool.layers[0].k
        shape = (num_blocks, *like.shape[1:])
        try:
            return cls(allocate_layers(len(pool.layers), shape, like.dtype, pool.layout))
        except MemoryError as error:
            raise ConfigError(
                f"a swap space of {num_blocks} blocks does not fit in this machine's memory; "
                "lower cache.swap_space_bytes"
            ) from error

    @property
    def num_blocks(self) -> int:
        """Blocks in the swap space."""
        return self.layers[0].k.shape[0]

    def save(self, pool: KVCache, swaps: Sequence[BlockSwap]) -> None:
        """Copy blocks of the pool to host memory, in every layer.

        Mutates: the swaps' host blocks.
        Complexity: O(copied blocks * layers).
        """
        if swaps:
            blocks = _joined(swap.blocks for swap in swaps)
            host_blocks = _joined(swap.host_blocks for swap in swaps)
            _copy(pool.layers, blocks, self.layers, host_blocks)

    def restore(self, pool: KVCache, swaps: Sequence[BlockSwap]) -> None:
        """Copy blocks of host memory to the pool, in every layer.

        Mutates: the swaps' blocks in the pool.
        Complexity: O(copied blocks * layers).
        """
        if swaps:
            blocks = _joined(swap.blocks for swap in swaps)
            host_blocks = _joined(swap.host_blocks for swap in swaps)
            _copy(self.layers, host_blocks, pool.layers, blocks)


def _joined(runs: Iterable[bytes]) -> torch.Tensor:
    packed = np.frombuffer(bytearray().join(runs), dtype=np.int32)
    return torch.from_numpy(packed.astype(np.int64))


def _copy(
    source_layers: Sequence[LayerKV],
    source: torch.Tensor,
    target_layers: Sequence[LayerKV],
    target: torch.Tensor,
) -> None:
    for here, there in zip(source_layers, target_layers, strict=True):
        for taken, kept in zip(here.blocks, there.blocks, strict=True):
            kept.index_copy_(0, target, taken.index_select(0, source).to(kept.device))
