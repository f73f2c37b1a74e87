"""The cache of a running engine: looked at, explained, pinned, flushed.

Looking is done at once: nothing of the tree changes but on the event loop, inside `schedule` and
`land`. What changes the cache goes through the scheduler's inbox instead, like everything else that
does, and is answered when the next step begins; an idle engine makes an empty step for it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from radixserve.core.cache_view import (
    MAX_DEPTH,
    CacheView,
    NamespaceView,
    NodeView,
    PinView,
    RankBy,
    RootView,
    TreeView,
    everything,
    view_cache,
    view_tree,
)
from radixserve.core.explanation import Explanation, explain
from radixserve.core.obstacles import MemoryNeed, Obstacle
from radixserve.core.pins import MAX_PINS, PinAnswer, PinRequest
from radixserve.core.req import ReqSpec
from radixserve.core.req_view import ReqView, view_reqs
from radixserve.engine.validation import check_prompt
from radixserve.types import Namespace, ReqId, SamplingParams, pack_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from radixserve.engine.engine_core import EngineCore
    from radixserve.errors import RadixServeError

__all__ = [
    "MAX_DEPTH",
    "MAX_PINS",
    "CacheControl",
    "CacheView",
    "Explanation",
    "FlushAnswer",
    "MemoryNeed",
    "NamespaceView",
    "NodeView",
    "Obstacle",
    "PinAnswer",
    "PinView",
    "RankBy",
    "ReqView",
    "RootView",
    "TreeView",
]

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True)
class FlushAnswer:
    """What a flush did; blocks."""

    flushed_blocks: int
    kept_blocks: int
    """Of the flushed namespaces, in use by requests that run."""
    dropped_pins: int


class CacheControl:
    """What may be asked of, and done to, the cache of an engine.

    Args:
        core: Of the engine.
        awaken: Lets the engine make a step; raises if there will be none.
    """

    def __init__(self, core: EngineCore, awaken: Callable[[], None]) -> None:
        self._core = core
        self._awaken = awaken
        self._asked: set[asyncio.Future[object]] = set()

    def __repr__(self) -> str:
        return f"<CacheControl of {self._core!r}>"

    @property
    def block_size(self) -> int:
        """Tokens a block."""
        return self._core.scheduler.cache.block_size

    def namespace(self, *, salt: str = "", owner: str = "") -> Namespace:
        """Return the namespace of requests with this salt and owner."""
        return Namespace(model=self._core.info.name, salt=salt, owner=owner)

    # -- looking -------------------------------------------------------------------------------

    def view(self, accepts: Callable[[Namespace], bool] = everything) -> CacheView:
        """Return sizes and counters; of the namespaces, those that `accepts` takes."""
        return view_cache(self._core.scheduler, self._core.now_s, accepts)

    def tree(
        self,
        *,
        by: RankBy = "tokens",
        limit: int = 20,
        depth: int = 8,
        accepts: Callable[[Namespace], bool] = everything,
    ) -> TreeView:
        """Return the runs of the tree that rank highest: see `view_tree`."""
        tree = self._core.scheduler.cache.tree
        return view_tree(tree, by=by, limit=limit, depth=depth, accepts=accepts)

    def explain(
        self,
        prompt_ids: Sequence[int],
        namespace: Namespace,
        *,
        max_tokens: int = 1,
        priority: int = 0,
    ) -> Explanation:
        """Return what a request with this prompt would find now.

        Raises:
            InvalidRequestError: the prompt is empty or has an unknown token.
        """
        check_prompt(prompt_ids, self._core.info.vocab_size)
        spec = ReqSpec(
            req_id=ReqId(""),
            prompt=pack_ids(prompt_ids),
            params=SamplingParams(max_tokens=max_tokens, seed=0),
            namespace=namespace,
            priority=priority,
        )
        return explain(self._core.scheduler, spec)

    def requests(self, *, limit: int = 1000) -> list[ReqView]:
        """Return the live requests, and what each of them waits for."""
        return view_reqs(self._core.scheduler, limit=limit)

    def age_s(self, req_id: ReqId) -> float | None:
        """Return how long ago a live request was submitted."""
        return self._core.age_s(req_id)

    # -- changing ------------------------------------------------------------------------------

    async def pin(
        self,
        prefix_ids: Sequence[int],
        namespace: Namespace,
        *,
        ttl_s: float,
        name: str = "",
        priority: int = 0,
    ) -> PinAnswer:
        """Hold what is cached of a prefix, if the budget for holds allows it.

        Raises:
            InvalidRequestError: the prefix is empty or has an unknown token.
            ShuttingDownError, EngineDeadError: there will be no more steps.
        """
        check_prompt(prefix_ids, self._core.info.vocab_size)
        request = PinRequest(
            key=pack_ids(prefix_ids), namespace=namespace, ttl_s=ttl_s, name=name, priority=priority
        )
        return await self._between_steps(lambda: self._core.scheduler.cache.pins.pin(request))

    async def unpin(self, name: str) -> bool:
        """Give up the pin of that name; False if there is none."""
        return await self._between_steps(lambda: self._core.scheduler.cache.pins.unpin(name))

    async def unpin_prefix(self, prefix_ids: Sequence[int], namespace: Namespace) -> list[str]:
        """Give up the pins of exactly this prefix; return their names."""
        key = pack_ids(prefix_ids)
        pins = self._core.scheduler.cache.pins
        return await self._between_steps(lambda: pins.unpin_prefix(key, namespace))

    async def flush(self, accepts: Callable[[Namespace], bool] = everything) -> FlushAnswer:
        """Drop what is cached and in nobody's use, pins included; running requests go on.

        Args:
            accepts: Which namespaces are flushed.
        """
        return await self._between_steps(lambda: self._flush(accepts))

    def close(self, reason: RadixServeError) -> None:
        """Answer with `reason` whatever has not been done: there will be no more steps."""
        for future in self._asked:
            if not future.done():
                future.set_exception(reason)
        self._asked.clear()

    # -- inside --------------------------------------------------------------------------------

    async def _between_steps(self, work: Callable[[], AnswerT]) -> AnswerT:
        """Do `work` when no plan is in flight, and return what it returns."""
        self._awaken()
        future: asyncio.Future[AnswerT] = asyncio.get_running_loop().create_future()

        def do() -> None:
            answer = work()
            if not future.done():  # whoever asked may have gone
                future.set_result(answer)

        self._core.scheduler.between_steps(do)
        self._asked.add(future)  # type: ignore[arg-type]
        try:
            return await future
        finally:
            self._asked.discard(future)

    def _flush(self, accepts: Callable[[Namespace], bool]) -> FlushAnswer:
        cache = self._core.scheduler.cache
        lost = cache.pins.num_lost
        namespaces = [root.namespace for root in cache.tree.roots() if accepts(root.namespace)]
        flushed = sum(cache.flush(namespace) for namespace in namespaces)
        kept = sum(cache.num_cached_blocks(namespace) for namespace in namespaces)
        return FlushAnswer(flushed, kept, cache.pins.num_lost - lost)
