"""`EngineCore`: scheduler, runner and text in one steppable object. No asyncio, no threads.

    begin(request)          validate, put a Req in the scheduler's inbox
    plan = schedule()
    result = compute(plan)  the only slow part; sees nothing but the plan
    events = land(plan, result)

On a device that works by itself `schedule` also plans the step after that one, where that can be,
and `compute` launches both before it waits for the first. The next `schedule` then returns the
second, which is under way, and plans the third.

`step()` does the last three in a row. The asyncio driver runs `compute` in a worker thread.
"""

from __future__ import annotations

import time
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from radixserve.core.req import ReqSpec
from radixserve.engine.grammars import Grammars
from radixserve.engine.live_requests import LiveRequests
from radixserve.engine.metrics import EngineMetrics
from radixserve.engine.output import OutputText
from radixserve.engine.pipeline import StepPipeline
from radixserve.engine.queue_limit import QueueLimit, StepRate, retry_after_s
from radixserve.engine.validation import (
    check_grammar,
    check_params,
    check_prompt,
    check_timeout,
)
from radixserve.errors import (
    BackendError,
    InvalidRequestError,
    InvariantError,
    PromptTooLongError,
    QueueFullError,
)
from radixserve.runtime.launch import ImmediateLauncher
from radixserve.types import FinishReason, Namespace, ReqId, pack_ids

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve.core.plan import ReqOutput, StepPlan, StepResult
    from radixserve.core.scheduler import Scheduler
    from radixserve.core.stats import SchedulerStats
    from radixserve.engine.info import ModelInfo
    from radixserve.engine.kv_events import KVEventPublisher
    from radixserve.engine.live_requests import StepEvent
    from radixserve.engine.request import GenerateRequest
    from radixserve.runtime.launch import StepLauncher
    from radixserve.runtime.step_runner import StepRunner
    from radixserve.runtime.step_times import StepTimes
    from radixserve.text.chat_template import ChatTemplate
    from radixserve.text.tokenizer import Tokenizer

MAX_IDLE_STEPS = 3
"""Steps in a row that may do nothing although Reqs are alive, before that is called a bug."""


class EngineCore:
    """One model behind one scheduler.

    Args:
        scheduler: Plans steps; this engine is its only user.
        runner: Computes them.
        tokenizer: Of the served model.
        chat_template: Of the served model.
        info: What clients may know.
        eos_token_ids: Ids that end an output unless a request ignores them.
        queue_limit: How much may wait.
        seed: Seeds the requests that bring none; None takes the system's entropy.
        clock: Seconds; only differences matter.
        launcher: Begins the runner's steps; one after the other, with nothing ahead, when None.
    """

    def __init__(  # noqa: PLR0913  the composition of everything below
        self,
        *,
        scheduler: Scheduler,
        runner: StepRunner,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate,
        info: ModelInfo,
        eos_token_ids: frozenset[int],
        queue_limit: QueueLimit,
        seed: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        launcher: StepLauncher | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self.info = info
        self.grammars = Grammars(tokenizer, info.vocab_size, eos_token_ids)
        self.times: StepTimes = runner.times
        self.times.clear()  # of what was done before anything is served
        self.metrics = EngineMetrics(
            scheduler.stats,
            model_name=info.name,
            times=self.times,
            kernel_seconds=runner.kernel_seconds,
        )
        self._runner = runner
        self._pipeline = StepPipeline(launcher or ImmediateLauncher(runner))
        self.eos_token_ids = eos_token_ids
        self._queue_limit = queue_limit
        self._rate = StepRate()
        self._scheduled_at = 0.0
        self._seeds = Random(seed)
        self._clock = clock
        self._live = LiveRequests(self.metrics)
        self._idle_steps = 0
        self._names = 0
        self._kv_events: KVEventPublisher | None = None

    def __repr__(self) -> str:
        return f"<EngineCore {self.info.name} {self.scheduler!r}>"

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self.scheduler.has_work

    @property
    def has_room(self) -> bool:
        """Whether the queue takes one more request."""
        queue = self.scheduler
        return self._queue_limit.has_room(queue.num_queued, queue.queued_tokens)

    def stats(self) -> SchedulerStats:
        """Return counters and gauges as they are now."""
        return self.scheduler.stats()

    def kernel_seconds(self) -> dict[str, float]:
        """Return the seconds spent so far in each kind of kernel; empty where nobody counts."""
        return self._runner.kernel_seconds()

    @property
    def now_s(self) -> float:
        """The time on the clock that everything in here goes by."""
        return self._clock()

    def age_s(self, req_id: ReqId) -> float | None:
        """Return how long ago a request was submitted; None if it is not live."""
        submitted_at = self._live.submitted_at(req_id)
        return None if submitted_at is None else self._clock() - submitted_at

    def publish_to(self, publisher: KVEventPublisher) -> None:
        """Tell `publisher` from now on what becomes of cached blocks; before the first step."""
        self._kv_events = publisher
        self.scheduler.cache.tree.events = []

    def close(self) -> None:
        """Let go of fork points and sockets; idempotent. No step may follow."""
        while self.scheduler.fork_points.forget_oldest():
            pass
        if self._kv_events is not None:
            self._kv_events.close()

    # -- requests ------------------------------------------------------------------------------

    def check(self, request: GenerateRequest) -> None:
        """Refuse a request that can never be served. Changes nothing.

        Raises:
            InvalidRequestError: the prompt, the sampling parameters or the id cannot be used.
            PromptTooLongError: prompt and output cannot fit, however long they wait.
        """
        check_prompt(request.prompt_ids, self.info.vocab_size)
        check_params(request.params, self.info.vocab_size)
        check_timeout(request.timeout_s)
        check_grammar(request, self.eos_token_ids)
        why = self.scheduler.refusal(len(request.prompt_ids), request.params.max_tokens)
        if why is not None:
            raise PromptTooLongError(why, param="prompt")
        if ReqId(request.request_id) in self._live:
            raise InvalidRequestError(
                f"the request id {request.request_id!r} is in use", param="request_id"
            )

    def begin(self, request: GenerateRequest) -> ReqId:
        """Accept a request: it waits in the inbox from now on.

        Returns: its name.
        Raises:
            QueueFullError: too many are waiting; and what `check` raises.
        Mutates: the inbox.
        """
        self.check(request)
        if not self.has_room:
            queued = self.scheduler.queued_tokens
            self.metrics.rejected("queue_full")
            raise QueueFullError(
                f"{self.scheduler.num_queued} requests with {queued} tokens are waiting already; "
                "try again later",
                retry_after_s=retry_after_s(queued, self._rate),
            )
        output = OutputText(request, self.tokenizer)
        spec = self._spec_of(request)
        self.scheduler.add(spec)
        self._live.add(spec.req_id, output, self._clock())
        return spec.req_id

    def end(self, req_id: ReqId) -> None:
        """Give a request up; it is gone after the steps in flight. Unknown names are ignored."""
        self.scheduler.abort(req_id)

    def forget(self, req_id: ReqId, *, is_end: bool = False) -> None:
        """Give a fork point up, as in `AsyncEngine`; a live request of its name goes on."""
        if not self._live.is_waited_for(req_id):
            kept = self.scheduler.fork_points
            self.scheduler.inbox.append(lambda: kept.forget(req_id, is_end=is_end))

    # -- the step ------------------------------------------------------------------------------

    def schedule(self) -> StepPlan:
        """Return the step that is to be answered next: planned now, or under way already.

        Mutates: the step after it is planned too, where the launcher and the scheduler allow it.
        """
        self.times.lap("between")
        self._scheduled_at = self._clock()
        plan = self.scheduler.in_flight
        if plan is None or plan.follows is None:
            plan = self.scheduler.schedule(self._scheduled_at)
            self._live.note_starts(plan, self._scheduled_at)
            self._pipeline.put(plan)
        if self._pipeline.can_run_ahead:
            ahead = self.scheduler.schedule_ahead(self._scheduled_at)
            if ahead is not None:
                self._pipeline.put(ahead)
        self._publish()
        self.times.lap("schedule")
        return plan

    def compute(self, plan: StepPlan) -> StepResult:
        """Run a plan's forward pass. The only part that may run in another thread.

        Args:
            plan: What `schedule` returned last.
        Raises:
            BackendError: it failed.
        """
        result = self._pipeline.result()
        assert result.step == plan.step
        return result

    def land(self, plan: StepPlan, result: StepResult | BackendError) -> list[StepEvent]:
        """Take in a step's result, or why there is none.

        Returns: what happened to each request.
        Raises:
            InvariantError: Reqs are alive and nothing moves.
        """
        self.times.lap("hand_over")
        if isinstance(result, BackendError):
            outputs = self.scheduler.fail(plan, str(result))
        else:
            outputs = self.scheduler.update(plan, result)
        num_tokens = plan.num_tokens
        self._rate.observe(num_tokens, self._clock() - self._scheduled_at)
        self.metrics.step(num_tokens)
        self._watch_progress(plan, outputs)
        self._publish()
        events = list(self._live.events(outputs, self._clock(), self._stop))
        self.times.lap("land")
        return events

    def step(self) -> list[StepEvent]:
        """Plan, compute and land one step.

        Whatever else ends the forward pass ends the requests of all plans in flight too, and is
        raised.
        """
        self.times.skip()  # what the caller did since the last step is no part of this one
        plan = self.schedule()
        try:
            result: StepResult | BackendError = self.compute(plan)
        except BackendError as failure:
            result = failure
        except BaseException:  # most likely an interrupt from the keyboard
            self._pipeline.clear()
            while (given_up := self.scheduler.in_flight) is not None:
                self.land(given_up, BackendError("the step was interrupted"))
            raise
        return self.land(plan, result)

    # -- inside --------------------------------------------------------------------------------

    def _spec_of(self, request: GenerateRequest) -> ReqSpec:
        params = request.params
        stops = params.stop_token_ids
        if not request.ignore_eos:
            stops |= self.eos_token_ids
        seed = self._seeds.getrandbits(63) if params.seed is None else params.seed
        return ReqSpec(
            req_id=ReqId(request.request_id) if request.request_id else self._new_name(),
            prompt=pack_ids(request.prompt_ids),
            params=replace(params, stop_token_ids=stops, seed=seed),
            namespace=Namespace(
                model=self.info.name, salt=request.cache_salt, owner=request.cache_owner
            ),
            priority=request.priority,
            hint=request.hint,
            tenant=request.tenant,
            deadline=None if request.timeout_s is None else self._clock() + request.timeout_s,
            fork_of=ReqId(request.fork_of) if request.fork_of else None,
            is_fork_point=request.is_fork_point,
            is_next_step=request.is_next_step,
        )

    def _publish(self) -> None:
        """Tell what has become of cached blocks since the last time."""
        if self._kv_events is not None:
            self._kv_events.publish(self.scheduler.cache.take_events())

    def _new_name(self) -> ReqId:
        """Return a name that no live request has, not even one that brought its own."""
        while True:
            self._names += 1
            name = ReqId(f"req-{self._names}")
            if name not in self._live:
                return name

    def _watch_progress(self, plan: StepPlan, outputs: list[ReqOutput]) -> None:
        is_idle = not plan.reqs and not outputs and bool(self.scheduler.live_ids)
        self._idle_steps = self._idle_steps + 1 if is_idle else 0
        if self._idle_steps >= MAX_IDLE_STEPS:
            raise InvariantError(9, f"Reqs are alive and nothing moves: {self.scheduler!r}")

    def _stop(self, req_id: ReqId) -> None:
        self.scheduler.abort(req_id, FinishReason.STOP)
