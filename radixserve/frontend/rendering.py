"""A program's prompt at its first call, without a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixserve.frontend.backends.protocol import Capability
from radixserve.frontend.path import Path
from radixserve.frontend.prompt import Prompt
from radixserve.frontend.run import Run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from radixserve.frontend.backends.protocol import (
        CallHints,
        GenCall,
        GenDone,
        ScoreCall,
        ScoreDone,
        WarmDone,
    )
    from radixserve.frontend.pieces import Transcript


class _Reached(BaseException):
    """The first call: what stands there is what is wanted."""

    def __init__(self, transcript: Transcript) -> None:
        super().__init__()
        self.transcript = transcript


class _NoModel:
    """Ends a program at its first call."""

    name = "no model"
    capabilities = frozenset(Capability)

    async def start(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Nothing to do."""

    async def generate(self, call: GenCall) -> AsyncIterator[str | GenDone]:
        """End here."""
        yield await self._reach(call.transcript)

    async def _reach(self, transcript: Transcript) -> str:
        raise _Reached(transcript)

    async def score(self, call: ScoreCall) -> ScoreDone:
        """End here."""
        raise _Reached(call.transcript)

    async def warm(self, transcript: Transcript, parent: str, hints: CallHints) -> WarmDone:
        """End here."""
        raise _Reached(transcript)

    def forget(self, call_ids: Sequence[str]) -> None:
        """Nothing to do."""


def rendered(
    function: Callable[..., Awaitable[Any]],
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> str:
    """Return the prompt as it stands at a program's first call, or at its end if there is none.

    Raises:
        Exception: what the program raises before; RuntimeError if it waits for anything else.
    """
    prompt = Prompt(Run(backend=_NoModel(), name=name), Path((name,)))
    coroutine = function(prompt, *args, **kwargs).__await__()
    try:
        coroutine.send(None)
    except _Reached as reached:
        return str(reached.transcript)
    except StopIteration:
        return prompt.text()
    finally:
        coroutine.close()
    raise RuntimeError(
        f"{name} waits for something other than the model before its first call: it cannot be "
        "rendered without running it"
    )
