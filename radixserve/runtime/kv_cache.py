"""`KVCache`: the memory of the KV pool, one pair of tensors a layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from radixserve.attention.layer_kv import allocate_layers
from radixserve.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from radixserve.attention.layer_kv import KVLayout, LayerKV
    from radixserve.core.plan import BlockCopy


class KVShape(Protocol):
    """What of a model decides the size of its KV; every ModelSpec has it."""

    @property
    def num_layers(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...


def choose_kv_dtype(setting: str, model_dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of K and V: the model's for "auto", int8 for "int8"."""
    return torch.int8 if setting == "int8" else model_dtype


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
    ) -> KVCache:
        """Return a pool of `num_blocks` blocks, filled with zeros.

        The system hands out the memory as blocks are first written, so that a large pool costs
        nothing at start-up.

        Args:
            spec: The model's layers, KV heads and head size.
            num_blocks: Blocks, in each layer.
            block_size: Tokens a block.
            dtype: Of K and V; int8 comes with a scale for each token's head.
            layout: How they lie in memory: as whoever reads them most likes it.
        Raises:
            ConfigError: the memory cannot be had.
        """
        shape = (num_blocks, block_size, spec.num_kv_heads, spec.head_dim)
        try:
            return cls(allocate_layers(spec.num_layers, shape, dtype, layout), layout)
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
        for num_tokens, source, target in _by_length(copies):
            for layer in self.layers:
                if num_tokens == self.block_size:
                    for blocks in layer.blocks:
                        blocks.index_copy_(0, target, blocks.index_select(0, source))
                else:
                    for tensor in layer.tensors:
                        tokens = tensor[:, :num_tokens]
                        tokens[target] = tokens[source]


def _by_length(copies: Sequence[BlockCopy]) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield (tokens, sources, targets) of the copies of each length."""
    for length in sorted({copy.num_tokens for copy in copies}):
        alike = [copy for copy in copies if copy.num_tokens == length]
        pairs = torch.tensor([(copy.source, copy.target) for copy in alike])
        yield length, pairs[:, 0], pairs[:, 1]
