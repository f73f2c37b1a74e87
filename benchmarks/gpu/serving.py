"""Scheduler and runtime as the engine drives them, without text: requests that decode together."""

from __future__ import annotations

import random
from array import array
from typing import TYPE_CHECKING

from radixserve.config import SchedulerConfig
from radixserve.core.prefix_cache import PrefixCache
from radixserve.core.req import ReqSpec
from radixserve.core.scheduler import Scheduler
from radixserve.engine.pipeline import StepPipeline
from radixserve.types import ReqId, SamplingParams

if TYPE_CHECKING:
    from benchmarks.gpu.batches import Batch
    from radixserve.runtime.kv_cache import KVCache
    from radixserve.runtime.launch import StepLauncher

MAX_TOKENS_A_STEP = 8192


class Serving:
    """As many requests as a batch has, which come to its context together.

    Args:
        launcher: The runtime, over `pool`.
        pool: Of just the batch's size.
        batch: How many requests, and what each has when it ends.
        num_decodes: Tokens that each of them gets.
        vocab_size: Of the model.
    """

    def __init__(
        self,
        launcher: StepLauncher,
        pool: KVCache,
        batch: Batch,
        *,
        num_decodes: int,
        vocab_size: int,
    ) -> None:
        self._num_reqs = batch.num_reqs
        self._pipeline = StepPipeline(launcher)
        self._scheduler = Scheduler(
            PrefixCache(num_blocks=pool.num_blocks, block_size=pool.block_size),
            SchedulerConfig(max_num_seqs=batch.num_reqs, max_num_batched_tokens=MAX_TOKENS_A_STEP),
            max_model_len=batch.kv_len,
        )
        dice = random.Random(0)
        params = SamplingParams(max_tokens=num_decodes, temperature=0.0)
        for row in range(batch.num_reqs):
            ids = (dice.randrange(vocab_size) for _ in range(batch.kv_len - num_decodes))
            prompt = array("I", ids).tobytes()
            self._scheduler.add(ReqSpec(req_id=ReqId(f"r{row}"), prompt=prompt, params=params))

    @property
    def num_ahead(self) -> int:
        """Steps that were launched before the one before had been answered."""
        return self._scheduler.counters.steps_ahead

    def fill(self) -> None:
        """Compute all prompts."""
        while self.step() < self._num_reqs:
            pass

    def step(self) -> int:
        """Answer one step, with the next one launched behind it; return the tokens it sampled.

        Raises:
            BackendError: it failed.
        """
        plan = self._scheduler.in_flight
        if plan is None or plan.follows is None:
            plan = self._scheduler.schedule(0.0)
            self._pipeline.put(plan)
        ahead = self._scheduler.schedule_ahead(0.0)
        if ahead is not None:
            self._pipeline.put(ahead)
        result = self._pipeline.result()
        self._scheduler.update(plan, result)
        return sum(token is not None for token in result.next_tokens)
