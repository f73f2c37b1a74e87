"""Eviction policies by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from radixserve.core.eviction.adaptive import AdaptiveIndex
from radixserve.core.eviction.fifo import FifoIndex
from radixserve.core.eviction.gdsf import GdsfIndex
from radixserve.core.eviction.hinted import HintedIndex
from radixserve.core.eviction.learned import LearnedIndex
from radixserve.core.eviction.lfu import AgedLfuIndex, LfuIndex
from radixserve.core.eviction.lru import LruIndex
from radixserve.core.eviction.slru import SlruIndex
from radixserve.core.eviction.two_queue import TwoQueueIndex
from radixserve.errors import ConfigError
from radixserve.types import ID_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve.core.eviction.index import EvictionIndex

Maker: TypeAlias = "Callable[[int, int], EvictionIndex]"
"""(num_blocks, block_size) -> index."""

HOLD_SHARE = 0.5
"""Most of the pool that hints may hold."""


def _learned(block_size: int) -> LearnedIndex:
    return LearnedIndex(block_bytes=block_size * ID_BYTES)


def _adaptive(num_blocks: int, block_size: int) -> AdaptiveIndex:
    candidates: dict[str, Callable[[], EvictionIndex]] = {
        "lru": LruIndex,
        "lfu-da": AgedLfuIndex,
        "learned": lambda: _learned(block_size),
    }
    return AdaptiveIndex(candidates, num_blocks=num_blocks, block_size=block_size)


_MAKERS: dict[str, Maker] = {
    "lru": lambda num_blocks, block_size: LruIndex(),
    "fifo": lambda num_blocks, block_size: FifoIndex(),
    "lfu": lambda num_blocks, block_size: LfuIndex(),
    "lfu-da": lambda num_blocks, block_size: AgedLfuIndex(),
    "slru": lambda num_blocks, block_size: SlruIndex(),
    "2q": lambda num_blocks, block_size: TwoQueueIndex(block_bytes=block_size * ID_BYTES),
    "gdsf": lambda num_blocks, block_size: GdsfIndex(),
    "learned": lambda num_blocks, block_size: _learned(block_size),
    "adaptive": _adaptive,
}

POLICY_NAMES = tuple(_MAKERS)


def find_eviction_policy(
    name: str, *, num_blocks: int, block_size: int, hold_share: float = HOLD_SHARE
) -> Callable[[], EvictionIndex]:
    """Return the maker of the index of that name, with hints around it.

    Args:
        name: One of `POLICY_NAMES`.
        num_blocks: Blocks in the pool.
        block_size: Tokens a block.
        hold_share: Most of the pool that hints may hold, from 0 to 1.
    Raises:
        ConfigError: there is no such policy.
    """
    maker = _MAKERS.get(name)
    if maker is None:
        raise ConfigError(f"eviction_policy must be one of {', '.join(_MAKERS)}; got {name!r}")
    max_held_blocks = int(num_blocks * hold_share)
    return lambda: HintedIndex(maker(num_blocks, block_size), max_held_blocks=max_held_blocks)
