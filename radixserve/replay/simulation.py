"""The whole scheduler over a trace, in simulated seconds.

Everything is the server's own (queue order, admission, chunked prefill, leader rule, preemption,
tree and pool) but for the runner, which has a cost model in place of a model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from radixserve.config import SchedulerConfig
from radixserve.core.eviction.names import find_eviction_policy
from radixserve.core.prefix_cache import PrefixCache
from radixserve.core.req import ReqSpec
from radixserve.core.scheduler import Scheduler
from radixserve.errors import InvariantError
from radixserve.replay.arrivals import ArrivalMode, Arrivals
from radixserve.replay.cost_model import CostModel
from radixserve.replay.distribution import Distribution
from radixserve.replay.scaled_prompt import ScaledPrompts
from radixserve.replay.simulated_runner import SimulatedRunner
from radixserve.types import ReqId, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve.core.plan import ReqOutput, StepPlan
    from radixserve.core.stats import SchedulerStats
    from radixserve.replay.trace import Trace

MOST_EMPTY_STEPS = 1000
"""Steps in a row without work after which the scheduler is taken to be stuck."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """The server that is simulated; tokens are real ones."""

    order: str = "sweep"
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 8192
    arrivals: ArrivalMode = ArrivalMode.RECORDED
    speed: float = 1.0
    """Recorded seconds that pass in one simulated second."""
    scale: int | None = None
    """Real tokens that each simulated token stands for; by the trace when None."""
    cost_model: CostModel = field(default_factory=CostModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeCounts:
    """What a server did over a trace; lengths in real tokens, times in simulated seconds."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    evicted_blocks: int
    preemptions: int
    finished: int
    refused: int
    """Requests that do not fit in the cache even alone."""
    makespan_s: float
    busy_s: float
    wait: Distribution
    """From arrival to the first step that computes for a request."""
    ttft: Distribution
    """From arrival to the first token."""

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens that were cached, from 0 to 1."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


class Simulation:
    """One server, one trace.

    Args:
        capacity: Blocks of the pool.
        policy: Name of the eviction policy.
    Raises:
        ConfigError: a name is not known, or a size is out of range.
    """

    def __init__(self, trace: Trace, capacity: int, policy: str, settings: ServeSettings) -> None:
        self._trace = trace
        self._prompts = ScaledPrompts(trace, settings.scale)
        scale, block_size = self._prompts.scale, self._prompts.block_size
        make_index = find_eviction_policy(policy, num_blocks=capacity, block_size=block_size)
        cache = PrefixCache(num_blocks=capacity, block_size=block_size, make_index=make_index)
        config = SchedulerConfig(
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=max(
                settings.max_num_seqs, settings.max_num_batched_tokens // scale
            ),
            schedule_policy=settings.order,
            preemption_mode="recompute",
        )
        self.scheduler = Scheduler(cache, config, max_model_len=capacity * block_size + 1)
        self._runner = SimulatedRunner(settings.cost_model, scale)
        self._arrivals = Arrivals(trace, settings.arrivals, settings.speed)
        self._arrived_s: dict[int, float] = {}
        self._started: set[int] = set()
        self._answering: set[int] = set()
        self._waits: list[float] = []
        self._ttfts: list[float] = []
        self._finished = 0
        self._refused = 0

    def run(self, advance: Callable[[int], None] = lambda _: None) -> ServeCounts:
        """Serve the whole trace.

        Args:
            advance: Told of each request that has been answered or refused.
        """
        empty = 0
        while True:
            self._admit_arrivals(advance)
            if not self.scheduler.has_work:
                if self._arrivals.next_s is None:
                    return self._counts()
                self._runner.idle_until(self._arrivals.next_s)
                continue
            empty = 0 if self._step(advance) else empty + 1
            if empty > MOST_EMPTY_STEPS:
                raise InvariantError(9, f"nothing moves any more: {self.scheduler!r}")

    def _admit_arrivals(self, advance: Callable[[int], None]) -> None:
        for at_s, number in self._arrivals.take(self._runner.now_s):
            request = self._trace.requests[number]
            output_len = self._prompts.output_len(request)
            if self.scheduler.refusal(self._prompts.prompt_len(request), output_len) is not None:
                self._refused += 1
                self._arrivals.answered(number, self._runner.now_s)
                advance(1)
                continue
            self._arrived_s[number] = at_s
            self.scheduler.add(
                ReqSpec(
                    req_id=ReqId(str(number)),
                    prompt=self._prompts.tokens(number, request),
                    params=SamplingParams(temperature=0.0, max_tokens=output_len),
                    priority=request.priority,
                    tenant=request.tenant,
                )
            )

    def _step(self, advance: Callable[[int], None]) -> bool:
        """Run one step and return whether it had any work."""
        plan = self.scheduler.schedule(self._runner.now_s)
        self._note_starts(plan)
        outputs = self.scheduler.update(plan, self._runner.execute(plan))
        for output in outputs:
            self._note(output, advance)
        if not plan.reqs and self._arrivals.next_s is not None:
            self._runner.idle_until(self._arrivals.next_s)
        return bool(plan.reqs or outputs)

    def _note_starts(self, plan: StepPlan) -> None:
        for req in plan.reqs:
            number = int(req.req_id)
            if number not in self._started:
                self._started.add(number)
                self._waits.append(self._runner.now_s - self._arrived_s[number])

    def _note(self, output: ReqOutput, advance: Callable[[int], None]) -> None:
        number = int(output.req_id)
        if output.new_token_ids and number not in self._answering:
            self._answering.add(number)
            self._ttfts.append(self._runner.now_s - self._arrived_s[number])
        if output.finish_reason is not None:
            self._finished += 1
            self._answering.discard(number)
            self._started.discard(number)
            del self._arrived_s[number]
            self._arrivals.answered(number, self._runner.now_s)
            advance(1)

    def _counts(self) -> ServeCounts:
        stats: SchedulerStats = self.scheduler.stats()
        scale = self._prompts.scale
        return ServeCounts(
            prompt_tokens=stats.prompt_tokens * scale,
            cached_tokens=stats.cached_tokens * scale,
            output_tokens=stats.output_tokens * scale,
            evicted_blocks=stats.evicted_blocks,
            preemptions=stats.preemptions,
            finished=self._finished,
            refused=self._refused,
            makespan_s=self._runner.now_s,
            busy_s=self._runner.busy_s,
            wait=Distribution.of(self._waits),
            ttft=Distribution.of(self._ttfts),
        )
