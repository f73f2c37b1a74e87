"""Requests that have ended, but whose last, partly filled block is kept for those that go on.

    parent   [ whole blocks: in the tree | a b c . ]      ended; its lease is still held
                                            | copy
    child    [ the same blocks, shared    | a b c x ]     fork_of=parent: computes x alone

Without it a child would compute up to a block of its parent's tokens again. A fork point is held
until its owner forgets it, and given up, the oldest first, when memory is short: it costs a little
computing then, and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from radixserve.core.prefix_cache import Lease, PrefixCache
    from radixserve.core.req import Req
    from radixserve.types import ReqId


class ForkPoints:
    """The leases of finished Reqs, by name, oldest first.

    Args:
        cache: Gets the leases back.
    """

    __slots__ = ("_cache", "_kept")

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._kept: dict[ReqId, Req] = {}

    def __repr__(self) -> str:
        return f"<ForkPoints {list(self._kept)}>"

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, req_id: object) -> bool:
        return req_id in self._kept

    def keep(self, req: Req) -> None:
        """Hold a finished Req's lease."""
        self._kept[req.req_id] = req

    def find(self, req_id: ReqId) -> Req | None:
        """Return the fork point of that name."""
        return self._kept.get(req_id)

    def forget(self, req_id: ReqId, *, is_end: bool = False) -> None:
        """Give a fork point's blocks back; unknown names are ignored.

        Args:
            is_end: Whether nobody will come back to its path either, to go on from what it has
                beyond what it found in the cache: that goes first.
        """
        req = self._kept.pop(req_id, None)
        if req is not None and req.lease is not None:
            hint = req.spec.hint
            self._cache.release(req.lease, hint.when_ended(req.borrowed_len) if is_end else hint)
            req.lease = None

    def forget_oldest(self, *, spared: Collection[ReqId] = ()) -> bool:
        """Give the oldest fork point's blocks back; False if there is none but `spared` ones."""
        name = next((name for name in self._kept if name not in spared), None)
        if name is None:
            return False
        self.forget(name)
        return True

    def leases(self) -> Iterator[Lease]:
        """What is held."""
        return (req.lease for req in self._kept.values() if req.lease is not None)
