"""`HostKV`: the memory of the swap space, laid out like the KV pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from radixserve.attention.layer_kv import allocate_layers
from radixserve.device.transfer import pinned_zeros, to_device
from radixserve.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch import Tensor

    from radixserve.attention.layer_kv import LayerKV
    from radixserve.core.plan import BlockSwap
    from radixserve.runtime.kv_cache import KVCache


@dataclass(frozen=True, slots=True, eq=False)
class HostKV:
    """Blocks in host memory. Whose KV is in which is not known here."""

    layers: list[LayerKV]
    is_apart: bool = False
    """Whether the pool is on a device of its own, which copies only what lies together."""

    @classmethod
    def allocate_beside(cls, pool: KVCache, num_blocks: int) -> HostKV:
        """Return a swap space of `num_blocks` blocks like those of `pool`, filled with zeros.

        The system hands out the memory as blocks are first written; beside a pool on a device it is
        pinned, and so taken at once.

        Raises:
            ConfigError: the memory cannot be had.
        """
        like = pool.layers[0].k
        shape = (num_blocks, *like.shape[1:])
        try:
            layers = allocate_layers(
                len(pool.layers),
                shape,
                like.dtype,
                pool.layout,
                make_zeros=_zeros_beside(pool.device),
            )
        except (MemoryError, RuntimeError) as error:  # pinned memory is refused by a RuntimeError
            raise ConfigError(
                f"a swap space of {num_blocks} blocks does not fit in this machine's memory; "
                "lower cache.swap_space_bytes"
            ) from error
        return cls(layers, is_apart=pool.device != layers[0].k.device)

    @property
    def num_blocks(self) -> int:
        """Blocks in the swap space."""
        return self.layers[0].k.shape[0]

    def save(self, pool: KVCache, swaps: Sequence[BlockSwap]) -> None:
        """Copy blocks of the pool to host memory, in every layer.

        From a device nobody waits for it: whatever is given to the device later comes after it.

        Mutates: the swaps' host blocks.
        Complexity: O(copied blocks * layers).
        """
        if not swaps:
            return
        blocks = to_device(_joined(swap.blocks for swap in swaps), pool.device)
        write = self._writer(_joined(swap.host_blocks for swap in swaps))
        for here, there in _pairs(pool.layers, self.layers):
            write(there, here.index_select(0, blocks))

    def restore(self, pool: KVCache, swaps: Sequence[BlockSwap]) -> None:
        """Copy blocks of host memory to the pool, in every layer.

        Mutates: the swaps' blocks in the pool.
        Complexity: O(copied blocks * layers).
        """
        if not swaps:
            return
        blocks = to_device(_joined(swap.blocks for swap in swaps), pool.device)
        read = self._reader(_joined(swap.host_blocks for swap in swaps), pool.device)
        for here, there in _pairs(self.layers, pool.layers):
            there.index_copy_(0, blocks, read(here))

    def _writer(self, blocks: Tensor) -> Callable[[Tensor, Tensor], object]:
        """Return what puts copied blocks to their places."""
        if not self.is_apart:
            return lambda kept, copied: kept.index_copy_(0, blocks, copied)
        runs = runs_of(blocks.tolist())

        def write(kept: Tensor, copied: Tensor) -> None:
            for place, first, count in runs:
                kept[first : first + count].copy_(copied[place : place + count], non_blocking=True)

        return write

    def _reader(self, blocks: Tensor, device: torch.device) -> Callable[[Tensor], Tensor]:
        """Return what brings some blocks together on the pool's device."""
        if not self.is_apart:
            return lambda kept: kept.index_select(0, blocks)
        runs = runs_of(blocks.tolist())

        def read(kept: Tensor) -> Tensor:
            copied = kept.new_empty((len(blocks), *kept.shape[1:]), device=device)
            for place, first, count in runs:
                copied[place : place + count].copy_(kept[first : first + count], non_blocking=True)
            return copied

        return read


def _pairs(here: Sequence[LayerKV], there: Sequence[LayerKV]) -> Iterator[tuple[Tensor, Tensor]]:
    for one, other in zip(here, there, strict=True):
        yield from zip(one.blocks, other.blocks, strict=True)


def _zeros_beside(device: torch.device) -> Callable[[int], Tensor] | None:
    """Return what makes bytes of 0 that a device copies to and from; None where any will do."""
    return pinned_zeros if device.type == "cuda" else None


def _joined(runs: Iterable[bytes]) -> Tensor:
    packed = np.frombuffer(bytearray().join(runs), dtype=np.int32)
    return torch.from_numpy(packed.astype(np.int64))


def runs_of(blocks: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return the maximal runs of consecutive ids: (place in `blocks`, first id, how many).

    Host memory is copied run by run: a device gathers its own blocks at once, but those of the host
    only as they lie there.
    """
    runs: list[tuple[int, int, int]] = []
    for place, block in enumerate(blocks):
        if runs and block == runs[-1][1] + runs[-1][2]:
            begin, first, count = runs[-1]
            runs[-1] = (begin, first, count + 1)
        else:
            runs.append((place, block, 1))
    return runs
