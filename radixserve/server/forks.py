"""Calls of ``/generate`` that are kept under a name, for others to go on from.

    call "a"    prompt 800, output 12                       kept: their 812 ids, the engine's
    call "b"    parent "a", parent_len 812, 30 new ids      fork point, the time it ends

A name belongs to the key that made it: nobody else finds it. What is kept is a convenience. It goes
when its time is up, when too much is kept, or when the caller forgets it; who goes on from it then
is told so, and sends the whole prompt.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from radixserve.errors import ForkNotFoundError
from radixserve.types import FinishReason, ReqId, pack_ids, unpack_ids

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
    from contextlib import AbstractAsyncContextManager

    from aiohttp import web

    from radixserve.engine.async_engine import AsyncEngine
    from radixserve.engine.request import GenerateRequest
    from radixserve.server.choice_deltas import ChoiceDeltas, Indexed
    from radixserve.types import PackedIds, TokenId

MAX_KEPT_TOKENS = 8 * 2**20
"""Of all kept calls together: 32 MiB."""
MAX_KEPT = 65_536

Key: TypeAlias = tuple[str, str]
"""The caller's name, and the name that the caller gave."""


@dataclass(frozen=True, slots=True)
class _Fork:
    """One kept call."""

    req_id: ReqId
    """The engine's fork point; the engine may have given it up already."""
    ids: PackedIds
    expiry: asyncio.TimerHandle


class Forks:
    """The kept calls of one server.

    Args:
        engine: Holds the fork points.
        max_tokens: Of all kept calls together; the oldest go first.
    """

    def __init__(self, engine: AsyncEngine, *, max_tokens: int = MAX_KEPT_TOKENS) -> None:
        self._engine = engine
        self._max_bytes = len(pack_ids([0])) * max_tokens
        self._kept: dict[Key, _Fork] = {}
        self._num_bytes = 0

    def __repr__(self) -> str:
        return f"<Forks {len(self._kept)}>"

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, owner: str, name: str) -> tuple[ReqId, list[TokenId]]:
        """Return a kept call's fork point and its ids, its prompt's and then its output's.

        Raises:
            ForkNotFoundError: the caller has no call of that name.
        """
        fork = self._kept.get((owner, name))
        if fork is None:
            raise ForkNotFoundError(
                f"There is no call {name[:128]!r} to go on from any more; send the whole prompt.",
                param="radix.fork.parent",
            )
        return fork.req_id, unpack_ids(fork.ids)

    def keep(
        self, owner: str, name: str, req_id: ReqId, ids: Sequence[TokenId], *, ttl_s: float
    ) -> None:
        """Keep a call that has ended; another of that name goes. Mutates: this."""
        key = (owner, name)
        self._drop(key)
        expiry = asyncio.get_running_loop().call_later(ttl_s, self._drop, key)
        fork = self._kept[key] = _Fork(req_id, pack_ids(ids), expiry)
        self._num_bytes += len(fork.ids)
        while self._num_bytes > self._max_bytes or len(self._kept) > MAX_KEPT:
            self._drop(next(iter(self._kept)))

    def forget(self, owner: str, names: Iterable[str], *, is_end: bool = False) -> int:
        """Let go of a caller's calls; return how many there were. Mutates: this.

        Args:
            is_end: Whether nobody will come back to their paths either.
        """
        return sum(self._drop((owner, name), is_end=is_end) for name in names)

    async def close(self, app: web.Application) -> None:
        """Let go of everything; a clean-up of the application."""
        for key in list(self._kept):
            self._drop(key)

    def _drop(self, key: Key, *, is_end: bool = False) -> bool:
        fork = self._kept.pop(key, None)
        if fork is None:
            return False
        fork.expiry.cancel()
        self._num_bytes -= len(fork.ids)
        self._engine.forget(fork.req_id, is_end=is_end)
        return True

    @asynccontextmanager
    async def keeping(
        self,
        running: AbstractAsyncContextManager[ChoiceDeltas],
        request: GenerateRequest,
        *,
        owner: str,
        name: str,
        ttl_s: float,
    ) -> AsyncIterator[ChoiceDeltas]:
        """Read a call's deltas, and keep the call before its last one is passed on.

        A call that does not end by itself is not kept.
        """
        ids = list(request.prompt_ids)
        req_id = ReqId(request.request_id)
        is_kept = False

        async def seen(deltas: ChoiceDeltas) -> AsyncGenerator[Indexed, None]:
            nonlocal is_kept
            async for index, delta in deltas:
                ids.extend(delta.token_ids)
                if delta.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
                    self.keep(owner, name, req_id, ids, ttl_s=ttl_s)
                    is_kept = True
                yield index, delta

        try:
            async with running as deltas, aclosing(seen(deltas)) as told:
                yield told
        finally:
            if not is_kept:
                self._engine.forget(req_id)
