"""How large the KV pool may be: how much memory is free, and what the settings make of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from radixserve.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from radixserve.config import CacheConfig


DEFAULT_SWAP_BYTES = 256 * 1024 * 1024
"""Host memory for swapped KV where the settings do not say."""


def choose_num_blocks(cache: CacheConfig, *, block_bytes: int, free_bytes: int) -> int:
    """Return the number of blocks of the KV pool. Pure.

    `cache.num_blocks` goes before `cache.kv_cache_memory_bytes`, and that before
    `cache.memory_fraction`.

    Args:
        cache: The settings of the pool.
        block_bytes: Bytes of one block over all layers.
        free_bytes: Bytes that can still be allocated.
    Raises:
        ConfigError: not one block fits, or more is asked for than is free.
    """
    if cache.num_blocks is not None:
        _require_free(cache.num_blocks * block_bytes, free_bytes, "cache.num_blocks")
        return cache.num_blocks
    if cache.kv_cache_memory_bytes is not None:
        _require_free(cache.kv_cache_memory_bytes, free_bytes, "cache.kv_cache_memory_bytes")
        return _whole_blocks(
            cache.kv_cache_memory_bytes, block_bytes, "cache.kv_cache_memory_bytes"
        )
    share = int(free_bytes * cache.memory_fraction)
    source = f"cache.memory_fraction ({cache.memory_fraction} of {free_bytes} free bytes)"
    return _whole_blocks(share, block_bytes, source)


def choose_swap_blocks(cache: CacheConfig, *, block_bytes: int, free_bytes: int) -> int:
    """Return the number of host blocks in which preempted requests' KV is kept. Pure.

    A share of host memory is chosen where the settings do not say: small, since on a machine
    without a GPU the same memory could have made the pool larger, but not nothing, since it is
    only taken once it is used, and then a copy is many times cheaper than computing again.

    Args:
        cache: The settings.
        block_bytes: Bytes of one block over all layers.
        free_bytes: Bytes that can still be allocated beside the pool.
    Raises:
        ConfigError: more is asked for than is free.
    """
    if cache.swap_space_bytes is None:
        return max(0, min(DEFAULT_SWAP_BYTES, free_bytes // 8)) // block_bytes
    _require_free(cache.swap_space_bytes, max(0, free_bytes), "cache.swap_space_bytes")
    return cache.swap_space_bytes // block_bytes


def _require_free(wanted: int, free_bytes: int, key: str) -> None:
    if wanted > free_bytes:
        raise ConfigError(f"{key} asks for {wanted} bytes; {free_bytes} bytes are free")


def _whole_blocks(budget: int, block_bytes: int, source: str) -> int:
    if budget < block_bytes:
        raise ConfigError(
            f"{source} gives the KV pool {budget} bytes, but one block takes {block_bytes} bytes"
        )
    return budget // block_bytes


def free_memory_bytes(root: Path = Path("/")) -> int:
    """Return how many bytes this process can still allocate without swapping.

    The machine's available memory, or what is left of the tightest control group around this
    process where that is less. Without /proc, the machine's physical memory.

    Args:
        root: Where /proc and /sys are found.
    """
    return max(0, min([_available_bytes(root), *_cgroup_bytes(root)]))


def _available_bytes(root: Path) -> int:
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cgroup_bytes(root: Path) -> Iterator[int]:
    """Yield what is left in each control group, of either version, that bounds this process."""
    mount = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield from _left_in(mount, path, limit="memory.max", usage="memory.current")
        elif "memory" in controllers.split(","):
            names = {"limit": "memory.limit_in_bytes", "usage": "memory.usage_in_bytes"}
            yield from _left_in(mount / "memory", path, **names)


def _left_in(mount: Path, path: str, *, limit: str, usage: str) -> Iterator[int]:
    # Inside a container the path may name a folder that only the host sees; the container's own
    # group is then the mount itself, which the walk ends with.
    group = mount / path.strip("/")
    for folder in (group, *group.parents):
        bound = _read(folder / limit).strip()
        if bound.isdigit():
            used = int(_read(folder / usage).strip() or 0)
            yield int(bound) - used + _reclaimable_bytes(folder)
        if folder == mount:
            return


def _reclaimable_bytes(folder: Path) -> int:
    """Return the group's cached file pages that were not used of late: counted, but given up."""
    for line in _read(folder / "memory.stat").splitlines():
        key, _, value = line.partition(" ")
        if key in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
