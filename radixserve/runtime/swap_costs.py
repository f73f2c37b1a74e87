"""What swapping and recomputing cost on this machine: timed once, before any port is opened."""

from __future__ import annotations

import time
from itertools import accumulate
from typing import TYPE_CHECKING

import torch

from radixserve.core.plan import BlockSwap, ScheduledReq, StepPlan, TransferCosts
from radixserve.device.transfer import synchronize
from radixserve.types import ReqId, pack_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from radixserve.runtime.host_kv import HostKV
    from radixserve.runtime.kv_cache import KVCache
    from radixserve.runtime.step_runner import StepRunner

MOST_COPIED_BLOCKS = 32
STEP_LENS = (1, 2, 3, 5, 9, 33)
"""Tokens of one Req in a step: an ordinary decode, one more to compute again, some, and more."""
CONTEXT_LEN = 1024
"""Tokens of that Req before them, if pool and model hold as many. Where a victim is short, a swap
wins by far if anything is lost; the choice is close for long ones, so a long one is timed."""
MOST_RUNS = 3
BUDGET_S = 0.4
"""Seconds after which nothing is timed more than once."""
PROBE = ReqId("cost-probe")


def measure_swap_costs(
    runner: StepRunner,
    pool: KVCache,
    host: HostKV,
    *,
    max_len: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> TransferCosts:
    """Time copies and steps, small and large ones; the quickest of a few runs counts.

    The quickest, since what slows the others down is somebody else, who may be gone later.

    Args:
        runner: Over `pool`, of which no block is in use.
        host: Of which no block is in use.
        max_len: Tokens of the longest sequence; what the pool holds when None.
        clock: Seconds.
    Mutates: the first blocks of pool and swap space.
    """
    stopwatch = _Stopwatch(clock)
    num_blocks = min(MOST_COPIED_BLOCKS, pool.num_blocks, host.num_blocks)
    one_s, all_s = (_copy_s(pool, host, count, stopwatch) for count in (1, num_blocks))
    block_s, copy_overhead_s = _line((1, one_s), (num_blocks, all_s))
    held = pool.num_blocks * pool.block_size
    capacity = min(held, max_len or held)
    lens = sorted({min(length, capacity) for length in STEP_LENS})
    start = max(0, min(CONTEXT_LEN, capacity - STEP_LENS[-1]))
    steps = [(length, _step_s(runner, pool, start, length, stopwatch)) for length in lens]
    token_s, _ = _line(steps[max(0, len(steps) - 2)], steps[-1])
    block_bytes = _block_bytes(pool)
    return TransferCosts(
        block_bytes=block_bytes,
        copy_bytes_per_s=block_bytes / block_s,
        prefill_tokens_per_s=1 / token_s,
        copy_overhead_s=copy_overhead_s,
        few_tokens=_more_than_a_decode(steps),
    )


def _more_than_a_decode(steps: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """Return by how much steps of more tokens take longer than the first one; never less again."""
    (decode_len, decode_s), *more = steps
    extra_s = accumulate((max(0.0, seconds - decode_s) for _, seconds in more), max)
    return tuple((n - decode_len, s) for (n, _), s in zip(more, extra_s, strict=True))


def _line(few: tuple[int, float], many: tuple[int, float]) -> tuple[float, float]:
    """Return slope and value at zero of the line through two (number, seconds).

    Where noise, or two equal numbers, leave no rising line: the one through zero and the second.
    """
    if few[0] < many[0] and few[1] < many[1]:
        slope = (many[1] - few[1]) / (many[0] - few[0])
        return slope, max(0.0, few[1] - few[0] * slope)
    return many[1] / many[0], 0.0


def _copy_s(pool: KVCache, host: HostKV, num_blocks: int, stopwatch: _Stopwatch) -> float:
    """Return the seconds of a copy one way: half of there and back."""
    ids = pack_ids(range(num_blocks))
    swaps = (BlockSwap(PROBE, ids, ids),)

    def there_and_back() -> None:
        with torch.inference_mode():
            host.save(pool, swaps)
            host.restore(pool, swaps)
            synchronize(pool.device)

    return stopwatch.quickest(there_and_back) / 2


def _step_s(
    runner: StepRunner, pool: KVCache, start: int, length: int, stopwatch: _Stopwatch
) -> float:
    """Return the seconds of a step in which one Req decodes and another computes some tokens, from
    `start` on.

    A Req that comes back is hardly ever alone.
    """
    table = pack_ids(range(-(-(start + length) // pool.block_size)))
    other = ScheduledReq(PROBE, pack_ids([0]), 0, pack_ids([0]), sampling=None)
    row = ScheduledReq(PROBE, pack_ids([0] * length), start, table, sampling=None)

    def step() -> None:
        runner.execute(StepPlan(0, (other, row)))
        synchronize(pool.device)

    return stopwatch.quickest(step)


class _Stopwatch:
    """Times actions by the quickest of a few runs, and of one run once its time is used up.

    The first run of an action takes pages and compiles what is compiled on first use.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left_s = BUDGET_S

    def quickest(self, action: Callable[[], object]) -> float:
        """Return the seconds of an action."""
        times: list[float] = []
        while not times or (len(times) < MOST_RUNS and self._left_s > 0):
            started = self._clock()
            action()
            times.append(self._clock() - started)
            self._left_s -= times[-1]
        return max(min(times), 1e-9)


def _block_bytes(pool: KVCache) -> int:
    return sum(tensor[0].nbytes for layer in pool.layers for tensor in layer.tensors)
