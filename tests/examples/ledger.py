"""What an engine has computed, request by request, and what it had to compute."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from radixserve.types import unpack_ids
from tests.kit.truth import shared_len

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.core.plan import StepPlan, StepResult
    from radixserve.engine.engine_core import EngineCore
    from radixserve.engine.request import GenerateRequest
    from radixserve.types import ReqId, TokenId


@dataclass(eq=False)
class Entry:
    """One request that has been admitted."""

    owner: str
    """Requests of different owners share nothing."""
    usable: Sequence[TokenId]
    """As much of its prompt as may come from the cache."""
    cached: int
    """Leading tokens of its prompt that did."""
    is_root: bool
    """It goes on from no other call."""
    computed: list[TokenId] = field(default_factory=list)
    """The tokens whose KV there is; grows as the request runs."""
    allowed: int = 0
    """What a tree without bounds has of `usable`: the whole blocks that had been computed by then,
    and all the tokens of the call that this one goes on from."""
    most: int = 0
    """The same with all the tokens of those that ran at the time: one of them may have led."""
    neighbours: list[Entry] = field(default_factory=list)
    """Those that ran at the time, or were admitted in the same step before it."""

    @property
    def forgone(self) -> int:
        """How many more there would have been for one that had waited for its neighbours."""
        found = (shared_len(self.usable, other.computed) for other in self.neighbours)
        return max(found, default=0) - self.cached

    def look_at(self, other: Entry, *, is_live: bool, is_parent: bool, block_size: int) -> None:
        """Take in what another request has computed so far. Mutates: this."""
        shared = shared_len(self.usable, other.computed)
        length = len(other.computed)
        self.most = max(self.most, shared if is_live else 0)
        if not is_parent:
            shared = min(shared, length - length % block_size)
        self.allowed = max(self.allowed, shared)
        self.most = max(self.most, self.allowed)


class Ledger:
    """Watches an engine's forward passes; nothing but its two entrances is changed.

    Args:
        core: Of the engine.
    """

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._requests: dict[ReqId, GenerateRequest] = {}
        self._entries: dict[ReqId, Entry] = {}
        self._begin, self._execute = core.begin, core._runner.execute
        core.begin = self._note_request  # type: ignore[method-assign]
        core._runner.execute = self._note_step  # type: ignore[method-assign]

    def close(self) -> None:
        """Watch no longer."""
        self._core.begin = self._begin  # type: ignore[method-assign]
        self._core._runner.execute = self._execute  # type: ignore[method-assign]

    def clear(self) -> None:
        """Forget all requests: the cache has been flushed."""
        self._requests.clear()
        self._entries.clear()

    def entries(self) -> list[Entry]:
        """Return the requests in the order of admission."""
        return list(self._entries.values())

    def _note_request(self, request: GenerateRequest) -> ReqId:
        req_id = self._begin(request)
        self._requests[req_id] = request
        return req_id

    def _note_step(self, plan: StepPlan) -> StepResult:
        admitted = [row for row in plan.reqs if row.req_id not in self._entries]
        for row in admitted:
            self._entries[row.req_id] = self._admitted(row.req_id, row.start)
        for row in admitted:  # only now is their KV as good as there
            self._entries[row.req_id].computed += self._requests[row.req_id].prompt_ids[: row.start]
        for row in plan.reqs:
            computed = self._entries[row.req_id].computed
            assert len(computed) == row.start, "nothing is preempted in so large a pool"
            computed += unpack_ids(row.token_ids)
        return self._execute(plan)

    def _admitted(self, req_id: ReqId, start: int) -> Entry:
        request, scheduler = self._requests[req_id], self._core.scheduler
        entry = Entry(request.cache_owner, _usable(request), start, not request.fork_of)
        for name, other in self._entries.items():
            if other.owner == entry.owner:
                is_live = name in scheduler.live_ids
                if is_live:
                    entry.neighbours.append(other)
                entry.look_at(
                    other,
                    is_live=is_live,
                    is_parent=name == request.fork_of
                    and (is_live or name in scheduler.fork_points),
                    block_size=scheduler.cache.block_size,
                )
        return entry


def _usable(request: GenerateRequest) -> Sequence[TokenId]:
    """Return the tokens before the one whose output is wanted first, be it a score or a sample."""
    scores = request.params.prompt_logprobs is not None
    first = request.params.prompt_logprobs_start if scores else len(request.prompt_ids)
    return request.prompt_ids[: first - 1]
