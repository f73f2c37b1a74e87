"""`KVCache`: the memory of the KV pool, one pair of tensors a layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import torch

from radixserve.attention.layer_kv import allocate_layers
from radixserve.device.transfer import to_device
from radixserve.errors import ConfigError, InvariantError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from radixserve.attention.layer_kv import KVLayout, LayerKV
    from radixserve.core.plan import BlockCopy

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
    """Return the bytes of one block: K and V of `block_size` tokens in every layer.

    Args:
        spec: The model's layers, KV heads and head size.
        block_size: Tokens a block.
        dtype: Of K and V; int8 has a scale for each token's head besides.
    """
    head_bytes = spec.head_dim * dtype.itemsize
    if dtype == torch.int8:
        head_bytes += torch.float32.itemsize
    return 2 * spec.num_layers * block_size * spec.num_kv_heads * head_bytes


@dataclass(frozen=True, slots=True, eq=False)
class KVCache:
    """The KV pool: the same block ids in every layer. Who owns which block is not known here."""

    layers: list[LayerKV]
    num_blocks: int
    """Blocks that may be owned; the layers hold the dummy block besides, after the last of them."""
    layout: KVLayout = "rows"

    @classmethod
    def allocate(
        cls,
        spec: KVShape,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        *,
        layout: KVLayout = "rows",
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
            dtype: Of K and V; int8 comes with a scale for each token's head.
            layout: How they lie in memory: as whoever reads them most likes it.
            device: Where the pool is.
            num_dummies: One if padded rows need a block that nobody owns.
        Raises:
            ConfigError: the memory cannot be had.
        """
        shape = (num_blocks + num_dummies, block_size, spec.num_kv_heads, spec.head_dim)
        try:
            layers = allocate_layers(
                spec.num_layers, shape, dtype, layout, make_zeros=_zeros_on(device)
            )
        except (MemoryError, torch.OutOfMemoryError) as error:
            size = num_blocks * block_bytes(spec, block_size, dtype)
            raise ConfigError(
                f"a KV pool of {num_blocks} blocks takes {size} bytes, which this machine does "
                "not give; lower cache.num_blocks or cache.kv_cache_memory_bytes"
            ) from error
        return cls(layers, num_blocks, layout)

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

        Whole blocks are copied, each in one run of memory: nobody reads a token of a target's that
        was not copied before it has been written.

        Mutates: the targets; what is behind the first `num_tokens` of each means nothing.
        Complexity: O(copies * layers).
        """
        if not copies:
            return
        pairs = torch.tensor([(copy.source, copy.target) for copy in copies])
        source, target = to_device(pairs.T.contiguous(), self.device)
        for layer in self.layers:
            for blocks in layer.blocks:
                blocks.index_copy_(0, target, blocks.index_select(0, source))


def _zeros_on(device: torch.device) -> Callable[[int], Tensor] | None:
    """Return what makes bytes of 0 on a device; None where `allocate_layers` has its own way."""
    if device.type == "cpu":
        return None
    return lambda num_bytes: torch.zeros(num_bytes, dtype=torch.uint8, device=device)
