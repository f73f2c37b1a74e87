"""`LiveRequests`: text and timing of each request until its last event has been given out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixserve.engine.timing import Timing
from radixserve.errors import BackendError, GrammarLimitError
from radixserve.types import RequestFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from radixserve.core.plan import ReqOutput, StepPlan
    from radixserve.engine.metrics import EngineMetrics
    from radixserve.engine.output import OutputText
    from radixserve.engine.request import TextDelta
    from radixserve.types import ReqId


@dataclass(frozen=True, slots=True)
class StepEvent:
    """What a step meant for one request: more text, or an error that ended it."""

    req_id: ReqId
    delta: TextDelta
    error: str | None = None

    def failure(self) -> BackendError | GrammarLimitError:
        """Return the exception for a request that ended with an error."""
        if isinstance(self.error, RequestFault):
            return GrammarLimitError(self.error)
        return BackendError(self.error or "the step failed")


@dataclass(slots=True)
class _Live:
    """The engine's side of a live Req."""

    output: OutputText
    timing: Timing
    is_ended: bool = False
    """Its last event has been given out; what the scheduler still says of it is dropped."""


class LiveRequests:
    """Text and timing of every live request, by name.

    A name stays in use until the scheduler has said its last word of it, which may come after the
    request's last event: a stop string ends it here first.

    Args:
        metrics: Told of gaps between tokens and of requests that end.
    """

    def __init__(self, metrics: EngineMetrics) -> None:
        self._metrics = metrics
        self._live: dict[ReqId, _Live] = {}
        self._unstarted: dict[ReqId, Timing] = {}
        """Of those for which no step has computed anything yet."""

    def __contains__(self, req_id: ReqId) -> bool:
        return req_id in self._live

    def __len__(self) -> int:
        return len(self._live)

    def add(self, req_id: ReqId, output: OutputText, now: float) -> None:
        """Begin with a request that was accepted at `now`."""
        timing = Timing(now)
        self._live[req_id] = _Live(output, timing)
        self._unstarted[req_id] = timing

    def submitted_at(self, req_id: ReqId) -> float | None:
        """Return when a request was accepted; None if it is not live."""
        live = self._live.get(req_id)
        return None if live is None else live.timing.submitted_at

    def is_waited_for(self, req_id: ReqId) -> bool:
        """Whether somebody still waits for an event of this request."""
        live = self._live.get(req_id)
        return live is not None and not live.is_ended

    def note_starts(self, plan: StepPlan, now: float) -> None:
        """Note for whom the plan, made at `now`, is the first to compute anything."""
        if not self._unstarted:
            return
        for row in plan.reqs:
            timing = self._unstarted.pop(row.req_id, None)
            if timing is not None:
                timing.started_at = now

    def events(
        self, outputs: Iterable[ReqOutput], now: float, stop: Callable[[ReqId], None]
    ) -> Iterator[StepEvent]:
        """Yield what the scheduler's outputs, which came at `now`, mean for each request.

        Args:
            stop: Called with a request that its own text has ended, before the scheduler knows.
        Mutates: the requests' text and timing; those that the scheduler has done with go.
        """
        for output in outputs:
            live = self._live[output.req_id]
            if not live.is_ended:
                yield self._event(live, output, now, stop)
            if output.finish_reason is not None:
                del self._live[output.req_id]
                self._unstarted.pop(output.req_id, None)

    def _event(
        self, live: _Live, output: ReqOutput, now: float, stop: Callable[[ReqId], None]
    ) -> StepEvent:
        delta = live.output.push(output)
        num_new = len(output.new_token_ids)
        gap = live.timing.saw(num_new, now)
        if gap is not None:
            self._metrics.gap(gap, num_new)
        if delta.finish_reason is not None:
            live.is_ended = True
            self._metrics.observe(live.timing, delta)
            if output.finish_reason is None:
                stop(output.req_id)
        return StepEvent(output.req_id, delta, output.error)
