"""A backend whose calls begin late and end late, each by another time."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from radixserve.frontend.trace import KnowsTokens

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from radixserve.frontend import Backend, Capability
    from radixserve.frontend.backends.encoding import TranscriptEncoder
    from radixserve.frontend.backends.protocol import (
        CallHints,
        GenCall,
        GenDone,
        ScoreCall,
        ScoreDone,
        WarmDone,
    )
    from radixserve.frontend.pieces import Transcript

LATEST_S = 0.3
"""Some steps of the default model: time enough to be overtaken."""


class ShuffledBackend:
    """Passes every call on, before and after a random time.

    Args:
        inner: Runs the calls.
        seed: Of the times.
    """

    def __init__(self, inner: Backend, seed: int) -> None:
        self.ended: list[str] = []
        """Paths of the calls in the order in which they ended."""
        self._inner = inner
        self._random = random.Random(seed)

    @property
    def name(self) -> str:
        """The inner one's."""
        return self._inner.name

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The inner one's."""
        return self._inner.capabilities

    @property
    def encoder(self) -> TranscriptEncoder:
        """The inner one's."""
        assert isinstance(self._inner, KnowsTokens)
        return self._inner.encoder

    async def start(self) -> None:
        """See `Backend`."""
        await self._inner.start()

    async def close(self) -> None:
        """See `Backend`."""
        await self._inner.close()

    async def generate(self, call: GenCall) -> AsyncIterator[str | GenDone]:
        """See `Backend`."""
        await self._linger()
        async for piece in self._inner.generate(call):
            if not isinstance(piece, str):
                await self._linger()
                self.ended.append(call.path)
            yield piece

    async def score(self, call: ScoreCall) -> ScoreDone:
        """See `Backend`."""
        await self._linger()
        done = await self._inner.score(call)
        await self._linger()
        self.ended.append(call.path)
        return done

    async def warm(self, transcript: Transcript, parent: str, hints: CallHints) -> WarmDone:
        """See `Backend`."""
        await self._linger()
        return await self._inner.warm(transcript, parent, hints)

    def forget(self, call_ids: Sequence[str]) -> None:
        """See `Backend`."""
        self._inner.forget(call_ids)

    async def _linger(self) -> None:
        await asyncio.sleep(self._random.uniform(0, LATEST_S))
