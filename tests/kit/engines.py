"""Engines over model folders: settings, idleness, and how close two tokens were to each other."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from radixserve.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from radixserve.core.invariants import check
from radixserve.engine.pipeline import StepPipeline
from radixserve.engine.request import GenerateRequest
from radixserve.types import SamplingParams
from tests.kit.likelihood import next_token_logits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from radixserve.core.plan import StepPlan, StepResult
    from radixserve.engine.engine_core import EngineCore
    from radixserve.runtime.launch import StepLauncher

TIE = 1e-4
"""Logits closer than this may be ordered either way by the order in which floats are summed."""

PATIENCE_S = 60.0
"""A bound that no working engine meets, however busy the machine is."""


def engine_config(
    folder: Path,
    *,
    num_blocks: int = 256,
    block_size: int = 16,
    prefix_cache: bool = True,
    num_threads: int = 1,
    swap_space_bytes: int | None = None,
    **scheduler: Any,
) -> EngineConfig:
    """Return settings for a float32 engine with a pool of exactly `num_blocks` blocks.

    Args:
        scheduler: Fields of `SchedulerConfig`.
    """
    return EngineConfig(
        model=ModelConfig(model=str(folder), served_model_name="tiny", dtype="float32"),
        cache=CacheConfig(
            num_blocks=num_blocks,
            block_size=block_size,
            prefix_cache=prefix_cache,
            swap_space_bytes=swap_space_bytes,
        ),
        scheduler=SchedulerConfig(**scheduler),
        num_threads=num_threads,
        seed=0,
    )


def ask(prompt_ids: Sequence[int], *, max_tokens: int = 8, **fields: Any) -> GenerateRequest:
    """Return a greedy request that goes on to its limit; fields as in `GenerateRequest`."""
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    defaults: dict[str, Any] = {"prompt_ids": prompt_ids, "params": params, "ignore_eos": True}
    return GenerateRequest(**(defaults | fields))


def run_ahead(core: EngineCore, make_launcher: Callable[[Any], StepLauncher]) -> None:
    """Let an engine that has not begun run a step ahead, as on a device that works by itself."""
    core._pipeline = StepPipeline(make_launcher(core._runner))


def assert_idle(core: EngineCore) -> None:
    """Nothing runs, waits or is remembered, and every block is free or in the tree."""
    check(core.scheduler)
    stats = core.stats()
    assert stats.num_running == stats.num_waiting == 0
    assert stats.private_blocks == stats.protected_blocks == 0
    assert stats.free_blocks + stats.evictable_blocks == stats.num_blocks
    assert not core.has_work
    assert not core.scheduler.live_ids
    assert not core._live


def top_two_gap(core: EngineCore, ids: Sequence[int]) -> float:
    """Return how far the best token after `ids` is above the second, computed without a cache."""
    best = next_token_logits(core, ids)[-1].topk(2).values
    return float(best[0] - best[1])


def num_ties(
    core: EngineCore, prompt: Sequence[int], expected: Sequence[int], found: Sequence[int]
) -> int:
    """Assert that two greedy outputs are equal up to a tie; return 1 if there was one, else 0.

    What follows a tie is another text and is not compared.
    """
    if list(found) == list(expected):
        return 0
    assert len(found) == len(expected)
    at = next(i for i, pair in enumerate(zip(expected, found, strict=True)) if len(set(pair)) > 1)
    gap = top_two_gap(core, [*prompt, *expected[:at]])
    assert gap < TIE, f"token {at} is {found[at]}, not {expected[at]}, which is {gap:.2g} ahead"
    return 1


async def until(condition: Callable[[], bool], *, patience_s: float = PATIENCE_S) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(patience_s):
        while not condition():  # noqa: ASYNC110  an engine's counters have no event to wait for
            await asyncio.sleep(0.001)


class StepGate:
    """Stands before an engine's forward passes: each waits, in its thread, until it is let in.

    Args:
        core: Of the engine; nothing but its runner's entrance is changed.
    """

    def __init__(self, core: EngineCore) -> None:
        self._num_arrived = self._num_passed = 0
        self._execute = core._runner.execute
        self._is_open = False
        self._permits = threading.Semaphore(0)
        core._runner.execute = self._pass  # type: ignore[method-assign]

    @property
    def num_waiting(self) -> int:
        """Forward passes, 0 or 1, that stand before the gate."""
        return self._num_arrived - self._num_passed

    async def arrival(self) -> None:
        """Wait until a forward pass stands before the gate."""
        await until(lambda: self.num_waiting == 1)

    async def let_in(self, num_steps: int = 1) -> None:
        """Let forward passes through, one after the other, each as it arrives."""
        for _ in range(num_steps):
            await self.arrival()
            passed = self._num_passed
            self._permits.release()
            await until(lambda passed=passed: self._num_passed > passed)  # type: ignore[misc]

    def open(self) -> None:
        """Let everything through from now on."""
        self._is_open = True
        self._permits.release()

    def _pass(self, plan: StepPlan) -> StepResult:
        self._num_arrived += 1
        if not self._is_open:
            assert self._permits.acquire(timeout=PATIENCE_S)
        result = self._execute(plan)
        self._num_passed += 1
        return result
