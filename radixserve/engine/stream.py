"""One request's output as an async iterator, and the only way to give a request up."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from radixserve.types import ReqId

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from radixserve.engine.async_engine import AsyncEngine
    from radixserve.engine.request import GenerateRequest, TextDelta, Usage
    from radixserve.errors import RadixServeError
    from radixserve.types import FinishReason


class RequestStream:
    """`async with engine.submit(request) as stream: async for delta in stream: ...`

    The request is queued on entering and given up on leaving, whatever the cause: the end, an
    exception, a cancelled task. A reader slower than the engine finds what came in the meantime
    merged into one delta, so a stream never holds more than one.
    """

    def __init__(self, engine: AsyncEngine, request: GenerateRequest) -> None:
        self.request_id = ReqId("")
        """Known once the stream has been entered."""
        self.usage: Usage | None = None
        """As of what has been handed over last."""
        self.finish_reason: FinishReason | None = None
        self.first_output_at: float | None = None
        """When the first output came, in seconds on the monotonic clock."""
        self._engine = engine
        self._request = request
        self._ready = asyncio.Event()
        self._held: TextDelta | None = None
        self._error: RadixServeError | None = None
        self._is_ended = False

    async def __aenter__(self) -> Self:
        self.request_id = self._engine._open(self, self._request)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._engine._close(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TextDelta:
        """Return what has come since the last call, waiting for it if need be.

        Raises:
            RequestAbortedError: the server ended the request.
            BackendError: the step that carried it failed.
            EngineDeadError: the engine has stopped.
        """
        while self._held is None:
            if self._error is not None:
                raise self._error
            if self._is_ended:
                raise StopAsyncIteration
            await self._ready.wait()
            self._ready.clear()
        delta, self._held = self._held, None
        return delta

    def put(self, delta: TextDelta) -> None:
        """Hand over a delta; for the engine. What comes after a failure is dropped."""
        if self._error is not None:
            return
        self._held = delta if self._held is None else self._held.merged_with(delta)
        if self.usage is None:
            self.first_output_at = time.monotonic()
        self.usage = delta.usage
        self.finish_reason = delta.finish_reason
        self._is_ended = delta.finish_reason is not None
        self._ready.set()

    def fail(self, error: RadixServeError) -> None:
        """Let the reader raise `error` after what has been handed over; for the engine.

        Only a stream's first end counts.
        """
        if not self._is_ended and self._error is None:
            self._error = error
            self._ready.set()
