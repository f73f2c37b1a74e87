"""How a Req gives way and comes back: the steps that go with the choices of `preemption`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve.core.preemption import Loss, choose_method, expected_demand, unpublished_len

if TYPE_CHECKING:
    from collections.abc import Iterable

    from radixserve.core.plan import BlockSwap
    from radixserve.core.preemption import PreemptionMode
    from radixserve.core.prefix_cache import PrefixCache
    from radixserve.core.req import Req
    from radixserve.core.stats import Counters
    from radixserve.core.swap_space import SwapSpace


class Preemptor:
    """Takes a running Req's blocks, and saves what would be dear to compute again.

    Args:
        cache: Where the blocks go.
        space: Where their content may be saved.
        mode: recompute, swap, or whichever is cheaper.
        counters: Told of preemptions.
    """

    def __init__(
        self, cache: PrefixCache, space: SwapSpace, mode: PreemptionMode, counters: Counters
    ) -> None:
        self._cache = cache
        self.space = space
        self._mode = mode
        self._counters = counters

    def preempt(self, req: Req, others: Iterable[Req]) -> BlockSwap | None:
        """Take the blocks of a running Req; what it computed stays in the tree, evictable.

        Args:
            req: Not one that this very step admitted: nothing of it has been written yet.
            others: The Reqs that go on running.
        Returns: what the plan must copy out first, if the Req is swapped.
        Mutates: the Req, which has no lease afterwards, cache and swap space.
        """
        assert req.lease is not None
        self._cache.commit(req.lease, bytes(req.tokens), req.computed_len)
        swap = self._save(req, others)
        self._cache.release(req.lease)
        req.lease = None
        req.preempted_len = max(req.preempted_len, req.computed_len)
        req.computed_len = 0
        req.num_preemptions += 1
        self._counters.preemptions += 1
        return swap

    def resume(self, req: Req, *, restores: bool) -> BlockSwap | None:
        """Bring back what was saved for a Req that has just been admitted, or drop it.

        Args:
            restores: What `SwapSpace.can_restore` said of the match that the Req's lease is over.
        Returns: what the plan must copy in before it computes anything.
        """
        if not restores:
            self.space.drop(req)
            return None
        return self.space.restore(req)

    def _save(self, req: Req, others: Iterable[Req]) -> BlockSwap | None:
        assert req.lease is not None
        first = self._cache.exclusive_start(req.lease)
        block_size = self._cache.block_size
        loss = Loss(
            published_blocks=req.lease.num_shared - first,
            unpublished_tokens=unpublished_len(req, block_size),
            demand=expected_demand(others, block_size),
            block_size=block_size,
        )
        free = self.space.pool.num_free
        method = choose_method(self._mode, loss, costs=self.space.costs, free_host_blocks=free)
        return self.space.save(req, first) if method == "swap" else None
