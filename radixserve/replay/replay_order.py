"""The order in which requests are taken one by one: as they came, or as a queue policy picks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve.core.policies import make_policy
from radixserve.core.req import Req, ReqSpec
from radixserve.core.waiting import WaitingQueue
from radixserve.types import Namespace, ReqId, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterator

    from radixserve.core.radix_tree import RadixTree
    from radixserve.replay.trace import Trace, TraceRequest

ARRIVAL = "arrival"
STREAM_WINDOW = 64
"""Requests that wait at once where they did not all arrive together."""


class ReplayOrder:
    """Yields a trace's requests in the order in which a queue policy admits them.

    Args:
        trace: Whose requests; as many as fit in the window wait at once.
        name: `arrival`, or the name of a queue policy.
        window: Requests that wait at once. When None: all of a batch, else `STREAM_WINDOW`.
        tree: The cache that the policy may look at.
    Raises:
        ConfigError: there is no such policy.
    """

    def __init__(self, trace: Trace, name: str, window: int | None, tree: RadixTree) -> None:
        self._trace = trace
        self._policy = None if name == ARRIVAL else make_policy(name)
        self._window = window or default_window(trace)
        self._tree = tree

    def __iter__(self) -> Iterator[TraceRequest]:
        if self._policy is None:
            yield from self._trace.requests
            return
        queue = WaitingQueue(self._policy.sort_key)
        coming = iter(enumerate(self._trace.requests))
        while True:
            while len(queue) < self._window and (following := next(coming, None)) is not None:
                queue.add(self._req(*following))
            req = next(iter(self._policy.candidates(queue, self)), None)
            if req is None:
                return
            queue.remove(req)
            self._policy.admitted(req)
            yield self._trace.requests[int(req.req_id)]

    def cached_len(self, req: Req) -> int:
        """Whole cached blocks of a prompt, in ids. Implements `QueueView`."""
        return self._tree.match_prefix(req.spec.prompt, req.spec.namespace).matched_len

    def attained(self, tenant: str) -> float:
        """Nothing: requests come one by one. Implements `QueueView`."""
        del tenant
        return 0.0

    def _req(self, number: int, request: TraceRequest) -> Req:
        spec = ReqSpec(
            req_id=ReqId(str(number)),
            prompt=request.path,
            params=SamplingParams(max_tokens=1),
            namespace=Namespace(),
            priority=request.priority,
            tenant=request.tenant,
        )
        return Req(spec, arrival=number)


def default_window(trace: Trace) -> int:
    """Return how many requests of a trace wait at once."""
    is_batch = trace.requests[-1].arrival_s == trace.requests[0].arrival_s
    return len(trace.requests) if is_batch else STREAM_WINDOW
