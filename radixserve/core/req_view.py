"""Frozen pictures of the live Reqs: how far each has come, and what it waits for."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Literal, TypeAlias

from radixserve.core.admission import is_held_back
from radixserve.core.obstacles import MemoryNeed, Obstacle, has_chunk, has_slot, memory_need
from radixserve.core.req import Req, ReqSpec, ReqState
from radixserve.types import ID_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from radixserve.core.scheduler import Scheduler
    from radixserve.types import Namespace, ReqId

MAX_MATCHED = 64
"""Waiting Reqs that are compared with the tree anew for one picture; the others only where their
last match still holds."""

Phase: TypeAlias = Literal["inbox", "waiting", "prefill", "decode"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReqView:
    """One live Req. Lengths in tokens."""

    req_id: ReqId
    phase: Phase
    """inbox: the next step will take it in; prefill: computing its prompt; decode: producing."""
    namespace: Namespace
    tenant: str
    priority: int
    prompt_len: int
    output_len: int = 0
    max_tokens: int
    computed_len: int = 0
    """Leading tokens whose KV is valid."""
    cached_len: int = 0
    """Prompt tokens found in the cache at the first admission."""
    num_preemptions: int = 0
    shared_blocks: int = 0
    private_blocks: int = 0
    waits_for: Obstacle | None = None
    """None if it takes part in the running step, or would in the next."""
    leader: ReqId | None = None
    """Who is computing the prefix that it waits for."""
    memory: MemoryNeed | None = None
    """If it waits for memory."""


def view_reqs(scheduler: Scheduler, *, limit: int) -> list[ReqView]:
    """Return the live Reqs: those running, then those waiting, then the inbox, in their order.

    Args:
        limit: Most of them.
    Complexity: O(limit), and O(prompt bytes) for the first `MAX_MATCHED` that wait.
    """
    return list(islice(_views(scheduler), limit))


def _views(scheduler: Scheduler) -> Iterator[ReqView]:
    rows = None
    if scheduler.in_flight is not None:
        rows = {row.req_id for row in scheduler.in_flight.reqs}
    for req in scheduler.queues.running.values():
        is_left_out = rows is not None and req.req_id not in rows
        yield _view(req, waits_for=Obstacle.CHUNK if is_left_out else None)
    # What is the same for all of them is found out once.
    common = _common_obstacle(scheduler)
    for place, req in enumerate(scheduler.queues.waiting):
        yield _waiting_view(req, scheduler, common, may_match=place < MAX_MATCHED)
    for entry in scheduler.inbox:
        if isinstance(entry, ReqSpec):
            yield _view(Req(entry, arrival=0), waits_for=Obstacle.QUEUE, phase="inbox")


def _common_obstacle(scheduler: Scheduler) -> Obstacle | None:
    if not has_slot(scheduler):
        return Obstacle.SLOT
    return None if has_chunk(scheduler) else Obstacle.CHUNK


def _waiting_view(
    req: Req, scheduler: Scheduler, common: Obstacle | None, *, may_match: bool
) -> ReqView:
    if is_held_back(req):
        assert req.leader is not None
        return _view(req, waits_for=Obstacle.PREFIX, leader=req.leader.req_id)
    if common is not None:
        return _view(req, waits_for=common)
    need = _need(req, scheduler, may_match=may_match)
    if need is not None and not need.is_met:
        return _view(req, waits_for=Obstacle.MEMORY, memory=need)
    return _view(req, waits_for=Obstacle.QUEUE)


def _need(req: Req, scheduler: Scheduler, *, may_match: bool) -> MemoryNeed | None:
    match = req.match_memo
    if match is None or match.version != scheduler.cache.tree.version:
        if not may_match:
            return None
        key = bytes(req.tokens[: (req.reusable_len + 1) * ID_BYTES])
        match = scheduler.cache.match(key, req.spec.namespace)
    return memory_need(scheduler, match, req.total_len)


def _view(
    req: Req,
    *,
    waits_for: Obstacle | None,
    leader: ReqId | None = None,
    memory: MemoryNeed | None = None,
    phase: Phase | None = None,
) -> ReqView:
    if phase is None and req.state is ReqState.RUNNING:
        phase = "decode" if req.output_len and req.is_decoding else "prefill"
    return ReqView(
        req_id=req.req_id,
        phase=phase or "waiting",
        namespace=req.spec.namespace,
        tenant=req.spec.tenant,
        priority=req.spec.priority,
        prompt_len=req.prompt_len,
        output_len=req.output_len,
        max_tokens=req.spec.params.max_tokens,
        computed_len=req.computed_len if req.lease else 0,
        cached_len=req.cached_len,
        num_preemptions=req.num_preemptions,
        shared_blocks=req.lease.num_shared if req.lease else 0,
        private_blocks=req.lease.num_private if req.lease else 0,
        waits_for=waits_for,
        leader=leader,
        memory=memory,
    )
