"""A prompt outside of a program: a chat that goes on as long as somebody talks."""

from __future__ import annotations

import itertools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from radixserve.frontend.default_backend import current_backend
from radixserve.frontend.path import Path
from radixserve.frontend.prompt import Prompt
from radixserve.frontend.record import current_recording
from radixserve.frontend.run import Run, RunOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from radixserve.frontend.backends.protocol import Backend

_numbers = itertools.count()


@asynccontextmanager
async def session(
    *,
    ttl: float = 0.0,
    seed: int = 0,
    priority: int = 0,
    max_tokens: int = 256,
    backend: Backend | None = None,
) -> AsyncIterator[Prompt]:
    """Yield a prompt whose KV is held softly between its turns.

    Args:
        ttl: Seconds for which it is held after each call, as far as the budget for holds goes.
        seed: All its calls' seeds come from this and their places.
        priority: Higher goes first.
        max_tokens: Of a generation that does not say.
        backend: The context's when None.
    """
    chosen = backend or current_backend()
    await chosen.start()
    name = f"session-{next(_numbers)}"
    options = RunOptions(seed=seed, priority=priority, ttl_s=ttl, max_tokens=max_tokens)
    run = Run(backend=chosen, name=name, options=options, recording=current_recording())
    try:
        yield Prompt(run, Path(("session",)))
    finally:
        run.end()
