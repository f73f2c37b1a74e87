"""Makers of small cores for tests: specs, schedulers, and a scheduler with a runner beside it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from radixserve.config import SchedulerConfig
from radixserve.core.invariants import check
from radixserve.core.prefix_cache import PrefixCache
from radixserve.core.req import ReqSpec
from radixserve.core.scheduler import Scheduler
from radixserve.core.swap_space import SwapSpace
from radixserve.types import FinishReason, Namespace, ReqId, SamplingParams, pack_ids, unpack_ids
from tests.kit.fake_runner import FakeRunner, score
from tests.kit.truth import continuation, prompt_scores

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from radixserve.core.plan import ReqOutput, StepPlan, StepResult, TransferCosts
    from radixserve.core.req import Req
    from radixserve.types import TokenLogprob

NAMELESS = Namespace()


def make_spec(
    req_id: str,
    prompt: Iterable[int],
    *,
    max_tokens: int = 4,
    stop: Iterable[int] = (),
    namespace: Namespace = NAMELESS,
    priority: int = 0,
    fork_of: str | None = None,
    min_tokens: int = 0,
    scored_from: int | None = None,
    logprobs: int | None = None,
    **fields: Any,
) -> ReqSpec:
    """A spec with plain values in place of packed and nested ones.

    Args:
        scored_from: First prompt position whose log-probability is asked for; None asks for none.
    """
    return ReqSpec(
        req_id=ReqId(req_id),
        prompt=pack_ids(prompt),
        params=SamplingParams(
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            stop_token_ids=frozenset(stop),
            seed=0,
            logprobs=logprobs,
            prompt_logprobs=None if scored_from is None else 0,
            prompt_logprobs_start=scored_from or 0,
        ),
        namespace=namespace,
        priority=priority,
        fork_of=None if fork_of is None else ReqId(fork_of),
        **fields,
    )


class Rig:
    """A scheduler with a runner beside it; every step is checked, every output collected.

    Args:
        num_blocks: Blocks in the pool.
        block_size: Tokens a block.
        cache: In place of a `PrefixCache` of that size.
        host_blocks: Blocks in the swap space.
        costs: What moving and computing KV cost, for `preemption_mode="auto"`.
        max_forced: Most tokens that the runner forces after a sampled one.
        config: Fields of `SchedulerConfig`.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int = 4,
        vocab_size: int = 1000,
        max_model_len: int = 1 << 20,
        cache: PrefixCache | None = None,
        host_blocks: int = 0,
        costs: TransferCosts | None = None,
        max_forced: int = 0,
        **config: Any,
    ) -> None:
        self.cache = cache or PrefixCache(num_blocks=num_blocks, block_size=block_size)
        self.space = SwapSpace(num_blocks=host_blocks, block_size=block_size, costs=costs)
        self.config = SchedulerConfig(**{"schedule_policy": "priority", **config})
        self.scheduler = Scheduler(
            self.cache,
            self.config,
            max_model_len=max_model_len,
            swap_space=self.space,
        )
        self.runner = FakeRunner(
            block_size=block_size,
            vocab_size=vocab_size,
            namespace_of=lambda req_id: self.specs[req_id].namespace,
            max_forced=max_forced,
        )
        self.specs: dict[str, ReqSpec] = {}
        self.tokens: defaultdict[str, list[int]] = defaultdict(list)
        self.scores: defaultdict[str, list[TokenLogprob]] = defaultdict(list)
        self.finals: dict[str, ReqOutput] = {}
        self.num_ahead = 0
        """Steps taken ahead."""
        self._computed: dict[int, StepResult] = {}
        """Results of plans in flight that were computed before their landing."""
        self.now = 0.0

    def add(self, req_id: str, prompt: Iterable[int], **fields: Any) -> None:
        """Put a request in the inbox; fields as in `make_spec`."""
        self.specs[req_id] = make_spec(req_id, prompt, **fields)
        self.scheduler.add(self.specs[req_id])

    def plan(self) -> StepPlan:
        """Schedule a step and check."""
        plan = self.scheduler.schedule(self.now)
        check(self.scheduler)
        assert plan.num_tokens <= self.config.max_num_batched_tokens
        return plan

    def plan_ahead(self) -> StepPlan | None:
        """Schedule the step after the one in flight, if that can be, and compute both in order."""
        running = self.scheduler.in_flight
        plan = self.scheduler.schedule_ahead(self.now)
        check(self.scheduler)
        if plan is None:
            return None
        assert running is not None
        assert plan.num_tokens <= self.config.max_num_batched_tokens
        if running.step not in self._computed:
            self._computed[running.step] = self.runner.execute(running)
        self._computed[plan.step] = self.runner.execute(plan)
        self.num_ahead += 1
        return plan

    def land(self, plan: StepPlan, row_errors: Mapping[int, str] | None = None) -> None:
        """Compute a plan, unless that has been done, take in its result and check."""
        result = self._computed.pop(plan.step, None) or self.runner.execute(plan)
        result = replace(result, row_errors=row_errors or {})
        self.collect(self.scheduler.update(plan, result))
        check(self.scheduler)

    def fail(self, plan: StepPlan) -> None:
        """Take in that a plan could not be computed, and check."""
        self._computed.pop(plan.step, None)
        self.collect(self.scheduler.fail(plan, "the device is gone"))
        check(self.scheduler)

    def collect(self, outputs: Iterable[ReqOutput]) -> None:
        """Keep outputs; a request that has had its last one gets no more."""
        for output in outputs:
            name = output.req_id
            assert name not in self.finals, f"{name} has had its final output already"
            self._check_logprobs(output)
            self.tokens[name].extend(output.new_token_ids)
            self.scores[name].extend(output.prompt_logprobs)
            assert output.output_len == len(self.tokens[name])
            if output.new_token_ids:
                assert self.scores[name] == prompt_scores(self.specs[name]), name
            if output.finish_reason is not None:
                self.finals[name] = output
        leases = [req.lease for req in self.scheduler.queues.running.values()]
        assert not any(lease.tail_pin for lease in leases if lease), "a copy's source is still held"

    def _check_logprobs(self, output: ReqOutput) -> None:
        """The sampled token's comes with it, and only to those who asked."""
        spec = self.specs[output.req_id]
        if spec.params.logprobs is None or not output.new_token_ids:
            assert output.logprobs == ()
            return
        before = unpack_ids(spec.prompt) + self.tokens[output.req_id]
        assert output.logprobs[0] == score(before, output.new_token_ids[0])

    def step(self) -> StepPlan:
        """One whole step, a second long."""
        plan = self.plan()
        self.land(plan)
        self.now += 1.0
        return plan

    def step_ahead(self) -> StepPlan | None:
        """Take in the oldest step, a new one if there is none, with another ahead if that can be.

        Returns: the step ahead.
        """
        plan = self.scheduler.in_flight or self.plan()
        ahead = self.plan_ahead()
        self.land(plan)
        self.now += 1.0
        return ahead

    def drain_ahead(self, max_steps: int = 5000) -> None:
        """Step until nothing is left to do, ahead wherever that can be."""
        for _ in range(max_steps):
            if not self.scheduler.has_work:
                return
            self.step_ahead()
        raise AssertionError(f"not idle after {max_steps} steps: {self.scheduler!r}")

    def drain(self, max_steps: int = 5000) -> int:
        """Step until nothing is left to do; return how many steps that took."""
        for steps in range(max_steps):
            if not self.scheduler.has_work:
                return steps
            self.step()
        raise AssertionError(f"not idle after {max_steps} steps: {self.scheduler!r}")

    def req(self, req_id: str) -> Req:
        """The live request of that name."""
        found = self.scheduler.queues.find(ReqId(req_id))
        assert found is not None, f"{req_id} is not live"
        return found

    def is_running(self, req_id: str) -> bool:
        """Whether a request of that name is running."""
        return ReqId(req_id) in self.scheduler.queues.running

    def reason(self, req_id: str) -> FinishReason | None:
        """Why a request ended."""
        return self.finals[req_id].finish_reason

    def expected(self, req_id: str) -> list[int]:
        """What a request produces when it is alone and nothing is cached."""
        return continuation(self.runner, self.specs[req_id])

    def assert_all_as_if_alone(self) -> None:
        """Every request has ended, with the tokens it would have produced alone."""
        assert set(self.finals) == set(self.specs)
        for name, spec in self.specs.items():
            assert self.tokens[name] == self.expected(name), name
            assert self.scores[name] == prompt_scores(spec), name
