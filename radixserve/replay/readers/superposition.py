"""Sessions that were recorded apart, laid over one another as if they had happened together."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from radixserve.replay.trace import TraceRequest


def superpose(
    sessions: Iterable[Sequence[TraceRequest]], *, span_s: float, seed: int
) -> tuple[TraceRequest, ...]:
    """Return all requests in the order of arrival, each session begun at a random time.

    Args:
        sessions: Each in order, with arrivals from its own start.
        span_s: Seconds; starts are uniform in it and what arrives after it is left out.
        seed: Chooses the starts.
    Complexity: O(n log n).
    """
    rng = random.Random(seed)
    placed = []
    for session in sessions:
        start_s = rng.uniform(0.0, span_s)
        for request in session:
            arrival_s = start_s + request.arrival_s
            if arrival_s <= span_s:
                placed.append(replace(request, arrival_s=arrival_s))
    placed.sort(key=lambda request: request.arrival_s)
    return tuple(placed)
