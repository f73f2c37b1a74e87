"""A backend that keeps what passes through it, so that a run can be compared with the best one."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixserve.frontend.backends.protocol import GenDone
from radixserve.frontend.pieces import Generated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from radixserve.frontend.backends.protocol import (
        Backend,
        CallHints,
        CallUsage,
        Capability,
        GenCall,
        ScoreCall,
        ScoreDone,
        WarmDone,
    )
    from radixserve.frontend.pieces import Transcript
    from radixserve.types import TokenId


@dataclass(frozen=True, slots=True)
class ObservedCall:
    """One generation, as it was sent and as it ended."""

    prompt: Transcript
    output_ids: tuple[TokenId, ...]
    """Those of its tokens whose KV it has computed: all but the one sampled last, and those that a
    stop string took away. Empty where the backend does not tell tokens."""
    usage: CallUsage


class ObservedBackend:
    """Passes everything on and keeps the generations.

    Args:
        backend: Runs the calls. It is not closed with this one.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.calls: list[ObservedCall] = []
        """In the order in which they ended."""

    @property
    def name(self) -> str:
        """The backend's."""
        return self._backend.name

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The backend's."""
        return self._backend.capabilities

    async def start(self) -> None:
        """See `Backend`."""
        await self._backend.start()

    async def close(self) -> None:
        """Nothing: the backend is somebody else's."""

    async def generate(self, call: GenCall) -> AsyncIterator[str | GenDone]:
        """See `Backend`. Mutates: `calls`."""
        async with aclosing(self._backend.generate(call)) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                if isinstance(piece, GenDone):
                    self.calls.append(ObservedCall(call.transcript, _ids(piece), piece.usage))
                yield piece

    async def score(self, call: ScoreCall) -> ScoreDone:
        """See `Backend`."""
        return await self._backend.score(call)

    async def warm(self, transcript: Transcript, parent: str, hints: CallHints) -> WarmDone:
        """See `Backend`."""
        return await self._backend.warm(transcript, parent, hints)

    def forget(self, call_ids: Sequence[str]) -> None:
        """See `Backend`."""
        self._backend.forget(call_ids)


def _ids(done: GenDone) -> tuple[TokenId, ...]:
    first = done.parts[0] if done.parts else None
    if not isinstance(first, Generated):
        return ()
    return first.token_ids[: done.usage.output_tokens - 1]
