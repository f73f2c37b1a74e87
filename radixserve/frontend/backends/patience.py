"""Comes again where a backend has no room for a call, whichever backend that is.

    call ---> refused, "after 2 s" ---> waits 2 to 3 s ---> refused ---> waits ---> taken

A refusal that says when to come again carries `retry_after_s`: a queue that is full, here or over
HTTP, and a server's 503 that says so. All others are raised at once, and so is one that comes after
a call has been taken. No wait outlasts the call's own timeout, and what it takes is taken off that.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from radixserve.errors import RadixServeError
from radixserve.frontend.backends.protocol import GenDone

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from radixserve.frontend.backends.protocol import (
        Backend,
        CallHints,
        CallUsage,
        GenCall,
        ScoreCall,
        ScoreDone,
        WarmDone,
    )
    from radixserve.frontend.pieces import Transcript

    AnswerT = TypeVar("AnswerT")

FIRST_WAIT_S = 0.25
"""The least of the first wait; it doubles with each."""
LONGEST_WAIT_S = 30.0
"""No wait is made longer than this for its being the tenth; a refusal may ask for more."""
SPREAD = 0.5
"""Each wait is longer by a random share up to this: what is refused together comes apart."""
PATIENCE_S = 300.0
"""All waits of a call that has no timeout of its own."""


@dataclass(slots=True)
class Waits:
    """How often a call has waited, and how long it still may."""

    timeout_s: float | None
    """Of the call, from its first attempt on."""
    count: int = 0
    _started: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float | None:
        """What is left of the call's own timeout."""
        if self.timeout_s is None or not self.count:
            return self.timeout_s
        return max(0.0, self.timeout_s - self._spent_s)

    def next_s(self, failure: RadixServeError) -> float:
        """Return after how many seconds to come again. Mutates: the count.

        Raises:
            RadixServeError: the failure itself, where coming again is no use or too late.
        """
        if failure.retry_after_s is None:
            raise failure
        least = max(failure.retry_after_s, min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**self.count))
        wait: float = least * (1 + random.uniform(0, SPREAD))
        patience = PATIENCE_S if self.timeout_s is None else self.timeout_s
        if self._spent_s + wait >= patience:
            if self.count:
                failure.add_note(f"it came {self.count + 1} times in {self._spent_s:.1f} s")
            raise failure
        self.count += 1
        return wait

    @property
    def _spent_s(self) -> float:
        return time.monotonic() - self._started


class PatientBackend:
    """A backend's calls, each made again as long as it is refused for want of room.

    What a call's usage says of time is about the attempt that was taken; `waits` counts the others.

    Args:
        backend: Runs the calls.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def generate(self, call: GenCall) -> AsyncIterator[str | GenDone]:
        """See `Backend`."""

        async def begin(left_s: float | None) -> tuple[str | GenDone, AsyncIterator[str | GenDone]]:
            pieces = self._backend.generate(replace(call, timeout_s=left_s))
            return await anext(pieces), pieces

        (first, rest), count = await patiently(begin, call.timeout_s)
        yield _counted(first, count)
        async for piece in rest:
            yield _counted(piece, count)

    async def score(self, call: ScoreCall) -> ScoreDone:
        """See `Backend`."""
        done, count = await patiently(
            lambda left_s: self._backend.score(replace(call, timeout_s=left_s)), call.timeout_s
        )
        return replace(done, usage=_with_waits(done.usage, count))

    async def warm(self, transcript: Transcript, parent: str, hints: CallHints) -> WarmDone:
        """See `Backend`."""
        done, count = await patiently(lambda _: self._backend.warm(transcript, parent, hints), None)
        return replace(done, usage=_with_waits(done.usage, count))


async def patiently(
    attempt: Callable[[float | None], Awaitable[AnswerT]], timeout_s: float | None
) -> tuple[AnswerT, int]:
    """Make attempts until one is taken; return its answer, and how often that took a wait.

    Args:
        attempt: Is told how many seconds it has.
        timeout_s: For all of them.
    Raises:
        RadixServeError: the last attempt's, when waiting is no use or would take too long.
    """
    waits = Waits(timeout_s)
    while True:
        try:
            return await attempt(waits.left_s), waits.count
        except RadixServeError as failure:
            wait_s = waits.next_s(failure)
        await asyncio.sleep(wait_s)


def _counted(piece: str | GenDone, count: int) -> str | GenDone:
    if not isinstance(piece, GenDone):
        return piece
    return replace(piece, usage=_with_waits(piece.usage, count))


def _with_waits(usage: CallUsage, count: int) -> CallUsage:
    return replace(usage, waits=usage.waits + count)
