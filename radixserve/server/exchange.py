"""One HTTP call as its operator sees it: who asked, what ran for it, how it ended.

The outermost middleware opens an `Exchange`; it is the current one in everything the handler does.
Handlers need not pass it on: `open_streams` gives every request that it submits the caller's part
of the cache, and notes what it took.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from radixserve.server.caller import ANYBODY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from radixserve.engine.request import GenerateRequest, Usage
    from radixserve.engine.stream import RequestStream
    from radixserve.server.caller import Caller


@dataclass(slots=True)
class Exchange:
    """What is noted of one HTTP call. Times in seconds on the monotonic clock."""

    request_id: str
    started_at: float
    caller: Caller = ANYBODY
    error_code: str = ""
    """Of the error that ended it, even if the status had been sent."""
    first_output_at: float | None = None
    finish_reasons: list[str] = field(default_factory=list)
    usages: list[Usage] = field(default_factory=list)

    @property
    def ttft_s(self) -> float | None:
        """From the call's arrival to its first output token."""
        return None if self.first_output_at is None else self.first_output_at - self.started_at

    def note(self, streams: Iterable[RequestStream]) -> None:
        """Add what became of some requests. Mutates: this."""
        for stream in streams:
            if stream.usage is not None:
                self.usages.append(stream.usage)
            if stream.finish_reason is not None:
                self.finish_reasons.append(stream.finish_reason.value)
            first = stream.first_output_at
            if first is not None:
                self.first_output_at = min(first, self.first_output_at or first)


_CURRENT: ContextVar[Exchange | None] = ContextVar("exchange", default=None)


def current_exchange() -> Exchange | None:
    """Return the call that is being answered; None outside of any."""
    return _CURRENT.get()


@contextmanager
def entered(exchange: Exchange) -> Iterator[None]:
    """Make an exchange the current one inside the `with`."""
    token = _CURRENT.set(exchange)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def owned(request: GenerateRequest) -> GenerateRequest:
    """Return a request that keeps to the current caller's part of the cache.

    The caller's name is also whom the policy `fair` counts the work for, unless the request names
    somebody.
    """
    exchange = _CURRENT.get()
    if exchange is None or not exchange.caller.name:
        return request
    caller = exchange.caller
    return replace(request, cache_owner=caller.cache_owner, tenant=request.tenant or caller.name)
