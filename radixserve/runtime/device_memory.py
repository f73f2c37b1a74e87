"""How large the KV pool on a device may be: all the memory, less what weights and steps take."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from radixserve.core.plan import SamplingState, ScheduledReq, StepPlan
from radixserve.errors import ConfigError
from radixserve.types import ReqId, SamplingParams, pack_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from radixserve.config import CacheConfig


RESERVED_SHARE = 0.02
"""Of all memory, left free: for the workspaces of libraries, and for what fragments of it cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """What there is, once the weights are loaded."""

    total_bytes: int
    free_bytes: int
    """Not taken by anybody, the weights included."""
    step_bytes: int
    """What the largest step takes beside weights and pool, and gives back."""

    @property
    def most_bytes(self) -> int:
        """What a pool may take."""
        reserve = int(self.total_bytes * RESERVED_SHARE)
        return max(0, self.free_bytes - self.step_bytes - reserve)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolNeed:
    """What a pool is made of, and what it must hold at least."""

    block_bytes: int
    """Of one block over all layers."""
    block_size: int
    num_tokens: int
    """The longest sequence that was promised; 1 if none was."""
    is_fp8: bool
    """Whether a token cannot be held in fewer bytes."""

    @property
    def num_bytes(self) -> int:
        """Of the blocks that must be there."""
        return -(-self.num_tokens // self.block_size) * self.block_bytes


def choose_device_blocks(cache: CacheConfig, need: PoolNeed, memory: DeviceMemory) -> int:
    """Return the number of blocks of a pool on a device, not counting its dummy block. Pure.

    `cache.num_blocks` goes before `cache.kv_cache_memory_bytes`, and that before
    `cache.gpu_memory_utilization`.

    Raises:
        ConfigError: the longest sequence does not fit, or more is asked for than is free; says what
            would fit.
    """
    most = memory.most_bytes
    size = need.block_bytes
    if cache.num_blocks is not None:
        _require(cache.num_blocks * size, most, "cache.num_blocks", need, memory)
        return cache.num_blocks
    if cache.kv_cache_memory_bytes is not None:
        budget = cache.kv_cache_memory_bytes
        _require(budget, most, "cache.kv_cache_memory_bytes", need, memory)
    else:
        taken = memory.total_bytes - most
        budget = int(memory.total_bytes * cache.gpu_memory_utilization) - taken
    num_blocks = max(0, budget) // size - 1  # the last one is for padded rows
    if num_blocks * need.block_size < need.num_tokens:
        raise ConfigError(_too_little(max(0, num_blocks), most, need, memory))
    return num_blocks


def _require(wanted: int, most: int, key: str, need: PoolNeed, memory: DeviceMemory) -> None:
    if wanted > most:
        hints = _hints(most // need.block_bytes, most, need, memory)
        raise ConfigError(
            f"{key} asks for {_gib(wanted)}; the GPU has {_gib(most)} left beside the weights and "
            f"the largest step. {hints}"
        )


def _too_little(num_blocks: int, most: int, need: PoolNeed, memory: DeviceMemory) -> str:
    fits = f"{num_blocks * need.block_size} tokens fit"
    return (
        f"the KV pool must hold {need.num_tokens} tokens, {_gib(need.num_bytes)}; in what the "
        f"settings leave of the GPU's {_gib(memory.total_bytes)} {fits}. "
        f"{_hints(num_blocks, most, need, memory)}"
    )


def _hints(num_blocks: int, most: int, need: PoolNeed, memory: DeviceMemory) -> str:
    return "What would fit: " + "; ".join(_ways_out(num_blocks, most, need, memory))


def _ways_out(num_blocks: int, most: int, need: PoolNeed, memory: DeviceMemory) -> Iterator[str]:
    if num_blocks > 0 and need.num_tokens > 1:
        yield f"max_model_len {num_blocks * need.block_size}"
    if need.num_bytes + need.block_bytes <= most:
        taken = memory.total_bytes - most + need.num_bytes + need.block_bytes
        share = min(1.0, (1000 * taken // memory.total_bytes + 1) / 1000)
        yield f"gpu_memory_utilization {share:.3f}"
    if not need.is_fp8:
        yield "kv_cache_dtype fp8_e4m3, which halves the bytes of a token"
    yield (
        "smaller max_num_batched_tokens and max_num_seqs: the largest step takes "
        f"{_gib(memory.step_bytes)}"
    )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"


def largest_plan(
    max_num_seqs: int, max_num_tokens: int, *, max_len: int, block_size: int
) -> StepPlan:
    """Return a step as large as steps can be: every row samples, with every filter and an edit.

    All rows name the same blocks, from block 0 on, so that a small pool will do; the numbers that
    come out mean nothing.

    Args:
        max_num_seqs: Rows.
        max_num_tokens: Tokens of all rows together, at least one each.
        max_len: Tokens of a row at most: the model has no position beyond.
        block_size: Tokens a block.
    """
    lens = _lens(max_num_seqs, max_num_tokens, max_len)
    table = pack_ids(range(-(-max(lens) // block_size)))
    params = SamplingParams(
        temperature=1.0, top_k=50, top_p=0.9, min_p=0.01, presence_penalty=0.1, seed=0
    )
    state = SamplingState(params, 1, prompt_ids=pack_ids([0]), output_ids=pack_ids([0]))
    reqs = (
        ScheduledReq(ReqId(f"profile-{row}"), pack_ids([0] * length), 0, table, state)
        for row, length in enumerate(lens)
    )
    return StepPlan(0, tuple(reqs))


def _lens(num_rows: int, num_tokens: int, max_len: int) -> list[int]:
    """Return how many tokens each row has: the first ones as many as they may."""
    lens: list[int] = []
    for rows_after in reversed(range(num_rows)):
        lens.append(min(max_len, num_tokens - sum(lens) - rows_after))
    return lens


def measure_memory(device: torch.device, largest_step: Callable[[], object]) -> DeviceMemory:
    """Run the largest step and return what it takes and what is left.

    Args:
        device: A CUDA device with the weights on it, and no pool yet.
        largest_step: Makes what it needs, a small pool included, and keeps nothing.
    """
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    largest_step()
    torch.cuda.synchronize(device)
    step_bytes = torch.cuda.max_memory_allocated(device) - before
    gc.collect()
    torch.cuda.empty_cache()
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    return DeviceMemory(total_bytes=total_bytes, free_bytes=free_bytes, step_bytes=step_bytes)
