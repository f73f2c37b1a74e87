from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from radixserve.config import CacheConfig
from radixserve.errors import ConfigError
from radixserve.runtime.memory import (
    DEFAULT_SWAP_BYTES,
    choose_num_blocks,
    choose_swap_blocks,
    free_memory_bytes,
)

if TYPE_CHECKING:
    from pathlib import Path

GIB = 2**30


def test_the_fraction_of_the_free_memory_is_filled_with_whole_blocks() -> None:
    cache = CacheConfig(memory_fraction=0.5)

    assert choose_num_blocks(cache, block_bytes=300, free_bytes=2000) == 3


def test_a_byte_budget_goes_before_the_fraction() -> None:
    cache = CacheConfig(memory_fraction=0.5, kv_cache_memory_bytes=1800)

    assert choose_num_blocks(cache, block_bytes=300, free_bytes=2000) == 6


def test_a_number_of_blocks_goes_before_everything() -> None:
    cache = CacheConfig(memory_fraction=0.5, kv_cache_memory_bytes=1800, num_blocks=2)

    assert choose_num_blocks(cache, block_bytes=300, free_bytes=2000) == 2


def test_a_fraction_too_small_for_one_block_is_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigError, match=r"0\.5 of 400 .* 200 bytes, .* one block takes 300"):
        choose_num_blocks(CacheConfig(memory_fraction=0.5), block_bytes=300, free_bytes=400)


def test_a_budget_too_small_for_one_block_is_refused_with_the_numbers() -> None:
    cache = CacheConfig(kv_cache_memory_bytes=299)
    with pytest.raises(ConfigError, match=r"kv_cache_memory_bytes gives .* 299 .* takes 300"):
        choose_num_blocks(cache, block_bytes=300, free_bytes=4000)


@pytest.mark.parametrize(
    ("cache", "key"),
    [
        (CacheConfig(num_blocks=10), "cache.num_blocks"),
        (CacheConfig(kv_cache_memory_bytes=3000), "cache.kv_cache_memory_bytes"),
    ],
)
def test_more_than_is_free_is_refused(cache: CacheConfig, key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} asks for 3000 bytes; 2999 bytes are free"):
        choose_num_blocks(cache, block_bytes=300, free_bytes=2999)


def make_root(root: Path, files: dict[str, str], *, available_kib: int = 8 * 1024**2) -> Path:
    files = {"proc/meminfo": f"MemTotal: 99 kB\nMemAvailable: {available_kib} kB\n"} | files
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_without_control_groups_the_available_memory_is_free(tmp_path: Path) -> None:
    assert free_memory_bytes(make_root(tmp_path, {})) == 8 * GIB


def test_a_version_2_group_bounds_what_is_free(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/pod"
    files = {
        "proc/self/cgroup": "0::/pod\n",
        f"{group}/memory.max": f"{4 * GIB}\n",
        f"{group}/memory.current": f"{3 * GIB}\n",
        f"{group}/memory.stat": f"anon 5\ninactive_file {GIB}\n",
    }

    assert free_memory_bytes(make_root(tmp_path, files)) == 2 * GIB


def test_the_tightest_group_on_the_way_up_counts(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/pod/box\n",
        "sys/fs/cgroup/pod/memory.max": f"{2 * GIB}\n",
        "sys/fs/cgroup/pod/memory.current": f"{GIB}\n",
        "sys/fs/cgroup/pod/box/memory.max": "max\n",
        "sys/fs/cgroup/pod/box/memory.current": "7\n",
    }

    assert free_memory_bytes(make_root(tmp_path, files)) == GIB


def test_in_a_container_the_mount_itself_is_the_group(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/host/only/path\n",
        "sys/fs/cgroup/memory.max": f"{3 * GIB}\n",
        "sys/fs/cgroup/memory.current": f"{GIB}\n",
    }

    assert free_memory_bytes(make_root(tmp_path, files)) == 2 * GIB


def test_a_version_1_group_bounds_what_is_free(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/memory/pod"
    files = {
        "proc/self/cgroup": "7:cpu,cpuacct:/pod\n4:memory:/pod\n",
        f"{group}/memory.limit_in_bytes": f"{4 * GIB}\n",
        f"{group}/memory.usage_in_bytes": f"{3 * GIB}\n",
        f"{group}/memory.stat": f"cache 1\ntotal_inactive_file {GIB // 2}\n",
    }

    assert free_memory_bytes(make_root(tmp_path, files)) == GIB + GIB // 2


def test_a_group_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": "100\n",
        "sys/fs/cgroup/memory.current": "200\n",
    }

    assert free_memory_bytes(make_root(tmp_path, files)) == 0


def test_a_limit_above_the_machine_changes_nothing(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": f"{2**62}\n",
        "sys/fs/cgroup/memory.current": "1\n",
    }

    assert free_memory_bytes(make_root(tmp_path, files)) == 8 * GIB


def test_without_proc_the_physical_memory_is_taken(tmp_path: Path) -> None:
    assert free_memory_bytes(tmp_path) > 0


def test_this_machine_has_some_memory_free() -> None:
    assert free_memory_bytes() > 2**20


def swap_blocks(cache: CacheConfig, free_bytes: int) -> int:
    return choose_swap_blocks(cache, block_bytes=300, free_bytes=free_bytes)


def test_the_swap_space_is_modest_where_the_settings_do_not_say() -> None:
    assert swap_blocks(CacheConfig(), 100 * GIB) == DEFAULT_SWAP_BYTES // 300
    assert swap_blocks(CacheConfig(), 8 * 300 * 5) == 5
    assert swap_blocks(CacheConfig(), 100) == 0
    assert swap_blocks(CacheConfig(), -100) == 0


def test_a_swap_space_of_a_given_size_has_whole_blocks() -> None:
    assert swap_blocks(CacheConfig(swap_space_bytes=1000), 1000) == 3
    assert swap_blocks(CacheConfig(swap_space_bytes=299), 1000) == 0
    assert swap_blocks(CacheConfig(swap_space_bytes=0), 0) == 0


def test_a_swap_space_larger_than_what_is_free_is_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigError, match="swap_space_bytes asks for 1000 bytes; 999 bytes"):
        swap_blocks(CacheConfig(swap_space_bytes=1000), 999)
