"""`AsyncEngine`: one asyncio task that steps the core, one worker thread for the forward pass.

    submit -> inbox, wake
      the task, for ever:   plan   = core.schedule()
                            result = await in_worker_thread(core.compute, plan)
                            events = core.land(plan, result)
                            hand each event to its stream

Everything but `compute` runs on the event loop, so the core needs no lock, and the loop is never
blocked for longer than scheduling and detokenizing take.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from radixserve.engine.build import build_core
from radixserve.engine.cache_control import CacheControl
from radixserve.engine.stream import RequestStream
from radixserve.errors import (
    BackendError,
    EngineDeadError,
    RadixServeError,
    RequestAbortedError,
    RequestTimeoutError,
    ShuttingDownError,
)
from radixserve.types import FinishReason, ReqId

if TYPE_CHECKING:
    from radixserve.config import EngineConfig
    from radixserve.core.plan import StepPlan, StepResult
    from radixserve.core.stats import SchedulerStats
    from radixserve.engine.engine_core import EngineCore
    from radixserve.engine.grammars import GrammarSpec
    from radixserve.engine.info import ModelInfo
    from radixserve.engine.live_requests import StepEvent
    from radixserve.engine.metrics import EngineMetrics
    from radixserve.engine.request import GenerateRequest
    from radixserve.models.progress import Progress
    from radixserve.text.chat_template import ChatTemplate
    from radixserve.text.tokenizer import Tokenizer
    from radixserve.types import Grammar

_log = logging.getLogger(__name__)


class AsyncEngine:
    """Drives an `EngineCore` from an event loop.

    Args:
        core: Used by nobody else from `start` on.
    """

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.cache = CacheControl(core, self._awaken)
        """Looks at the cache, explains, pins and flushes it."""
        self._streams: dict[ReqId, RequestStream] = {}
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="radixserve-step")
        self._is_stopping = False
        self._death: BaseException | None = None

    @classmethod
    def from_config(cls, config: EngineConfig, *, progress: Progress | None = None) -> AsyncEngine:
        """Load the model and build everything. Blocks for seconds.

        Raises:
            ConfigError: a setting or the model cannot be used.
        """
        return cls(build_core(config, progress=progress))

    def __repr__(self) -> str:
        state = "ready" if self.is_ready else "alive" if self.is_alive else "dead"
        return f"<AsyncEngine {state} streams={len(self._streams)} {self.core!r}>"

    # -- what can be seen ----------------------------------------------------------------------

    @property
    def info(self) -> ModelInfo:
        """The served model and its limits."""
        return self.core.info

    @property
    def tokenizer(self) -> Tokenizer:
        """Of the served model."""
        return self.core.tokenizer

    @property
    def chat_template(self) -> ChatTemplate:
        """Of the served model."""
        return self.core.chat_template

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Ids that end an output unless a request ignores them."""
        return self.core.eos_token_ids

    @property
    def metrics(self) -> EngineMetrics:
        """Prometheus metrics."""
        return self.core.metrics

    @property
    def is_alive(self) -> bool:
        """False once the loop has failed."""
        return self._death is None

    @property
    def is_ready(self) -> bool:
        """Whether requests are taken now."""
        return self._task is not None and self.is_alive and not self._is_stopping

    def stats(self) -> SchedulerStats:
        """Return counters and gauges as they are now."""
        return self.core.stats()

    # -- life ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to take and to run requests; once in an engine's life.

        Raises:
            EngineDeadError: it was started before.
        """
        if self._task is not None:
            raise EngineDeadError("an engine can be started only once")
        self._task = asyncio.create_task(self._run(), name="radixserve-engine")

    async def stop(self, *, grace_s: float = 0.0) -> None:
        """Take nothing new, let what runs end within `grace_s`, then end it; idempotent.

        Streams that are cut off raise RequestAbortedError.
        """
        self._is_stopping = True
        if self._task is None:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), grace_s)
        for req_id, stream in list(self._streams.items()):
            stream.fail(RequestAbortedError("the server is shutting down"))
            self.core.end(req_id)
        self._wake.set()
        await asyncio.shield(self._task)
        self.core.close()
        self._worker.shutdown(wait=False)  # it has nothing left to do; to join it would block

    # -- requests ------------------------------------------------------------------------------

    def submit(self, request: GenerateRequest) -> RequestStream:
        """Return the stream of a request; it is queued on entering the stream.

        Raises:
            InvalidRequestError, PromptTooLongError: it can never be served.
            ShuttingDownError, EngineDeadError: nothing is taken now.
            QueueFullError: too many are waiting; raised on entering.
        """
        self._require_ready()
        self.core.check(request)
        return RequestStream(self, request)

    def _open(self, stream: RequestStream, request: GenerateRequest) -> ReqId:
        self._require_ready()
        req_id = self.core.begin(request)
        self._streams[req_id] = stream
        self._idle.clear()
        self._wake.set()
        return req_id

    def _close(self, stream: RequestStream) -> None:
        """Leaving a stream: a live request is given up.

        The name of one that has ended may belong to another stream by now.
        """
        req_id = stream.request_id
        if self._streams.get(req_id) is stream:
            del self._streams[req_id]
            self.core.end(req_id)
            self._wake.set()

    async def compile_grammar(self, spec: GrammarSpec, *, param: str | None = None) -> Grammar:
        """Return what `SamplingParams.grammar` takes, made in a thread unless it is known.

        Args:
            param: The caller's field, for the error's message.
        Raises:
            UnsupportedGrammarError: it is wrong, too large, or a part of it cannot be enforced.
        """
        return await self.core.grammars.compile_aside(spec, param=param)

    def forget(self, fork_point: ReqId, *, is_end: bool = False) -> None:
        """Give up a fork point: a request that has ended and was asked for with `is_fork_point`.

        Unknown names are ignored.

        Args:
            is_end: Whether nobody will come back to its path: what is its alone is then evicted
                first. A hint, which costs nothing but speed if it is wrong.
        """
        self.core.forget(fork_point, is_end=is_end)
        self._wake.set()

    def _awaken(self) -> None:
        self._require_ready()
        self._idle.clear()
        self._wake.set()

    def _require_ready(self) -> None:
        if self._death is not None:
            raise EngineDeadError("the engine has stopped after an internal error")
        if not self.is_ready:
            raise ShuttingDownError("the engine takes no requests now")

    # -- the loop ------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while not (self._is_stopping and not self.core.has_work):
                if self.core.has_work:
                    await self._step()
                else:
                    self._idle.set()
                    await self._wake.wait()
                    self._wake.clear()
                    self.core.times.skip()
        except Exception as death:
            _log.exception("the engine has stopped")
            self._die(death)
        except asyncio.CancelledError as death:  # somebody cancelled the engine's own task
            self._die(death)
            raise
        finally:
            self._idle.set()
            self.cache.close(
                ShuttingDownError("the engine has stopped")
                if self._death is None
                else EngineDeadError("the engine has stopped after an internal error")
            )

    async def _step(self) -> None:
        plan = self.core.schedule()
        result = await self._compute(plan)
        for event in self.core.land(plan, result):
            self._deliver(event)
        # Readers and new requests get their turn even when a step did not have to wait.
        await asyncio.sleep(0)

    async def _compute(self, plan: StepPlan) -> StepResult | BackendError:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._worker, self.core.compute, plan)
        except BackendError as failure:
            _log.exception("step %d failed", plan.step)
            return failure

    def _deliver(self, event: StepEvent) -> None:
        stream = self._streams.get(event.req_id)
        if stream is None:
            return
        reason = event.delta.finish_reason
        if reason is FinishReason.ERROR:
            stream.fail(event.failure())
        elif reason is FinishReason.TIMEOUT and event.delta.usage.completion_tokens == 0:
            stream.fail(RequestTimeoutError("the request's time was up before its first token"))
        elif reason is FinishReason.ABORT:
            stream.fail(RequestAbortedError("the request was aborted"))
        else:
            stream.put(event.delta)
        if reason is not None:
            del self._streams[event.req_id]

    def _die(self, death: BaseException) -> None:
        self._death = death
        error: RadixServeError = EngineDeadError("the engine has stopped after an internal error")
        for stream in self._streams.values():
            stream.fail(error)
        self._streams.clear()
