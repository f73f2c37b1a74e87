"""Clients that come, stay or leave, all at once: what soaks are made of."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from radixserve.core.invariants import check
from radixserve.errors import RequestTimeoutError
from tests.kit.engines import until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from radixserve.engine.async_engine import AsyncEngine
    from radixserve.engine.request import GenerateRequest
    from radixserve.types import FinishReason

CANCELLED = -1
"""Stands in `Visit.leaves_after` of a client that was cancelled from outside."""


@dataclass(slots=True)
class Visit:
    """What a client asks and after how many deltas it leaves; None: it stays to the end."""

    request: GenerateRequest
    leaves_after: int | None
    deltas: int = 0
    tokens: list[int] = field(default_factory=list)
    reasons: list[FinishReason] = field(default_factory=list)
    expired: bool = False
    """Its deadline passed while it waited."""


async def attend(engine: AsyncEngine, visit: Visit, places: asyncio.Semaphore) -> None:
    """Be one client."""
    async with places, engine.submit(visit.request) as stream:
        if visit.leaves_after == 0:
            return
        try:
            async for delta in stream:
                visit.deltas += 1
                visit.tokens += delta.token_ids
                if delta.finish_reason is not None:
                    visit.reasons.append(delta.finish_reason)
                if visit.deltas == visit.leaves_after:
                    return
        except RequestTimeoutError:
            visit.expired = True


async def attend_all(
    engine: AsyncEngine,
    visits: Sequence[Visit],
    random: Random,
    *,
    num_clients: int,
    victim_share: float = 0.1,
    patience_s: float = 60.0,
) -> None:
    """Run all visits; some clients are cancelled from outside at some moment.

    Args:
        victim_share: Those, of all.
        patience_s: The longest that any one of those may take to begin.
    """
    places = asyncio.Semaphore(num_clients)
    clients = [asyncio.create_task(attend(engine, visit, places)) for visit in visits]
    victims = random.sample(range(len(clients)), int(len(clients) * victim_share))
    for index in sorted(victims):
        await until(
            lambda index=index: visits[index].deltas > 0 or clients[index].done(),  # type: ignore[misc]
            patience_s=patience_s,
        )
        if clients[index].cancel():
            visits[index].leaves_after = visits[index].leaves_after or CANCELLED
    outcomes = await asyncio.gather(*clients, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} <= {type(None), asyncio.CancelledError}
    await until(lambda: not engine.core.has_work)


def check_sometimes(engine: AsyncEngine, *, every: int) -> list[int]:
    """Check the invariants after every `every`-th step; return the list of those steps."""
    land, checked = engine.core.land, list[int]()

    def land_and_check(plan: Any, result: Any) -> Any:
        events = land(plan, result)
        if plan.step % every == 0:
            check(engine.core.scheduler)
            checked.append(plan.step)
        return events

    engine.core.land = land_and_check  # type: ignore[method-assign]
    return checked


def num_outcomes(engine: AsyncEngine) -> int:
    """Requests that the metrics count as ended, for whatever reason."""
    families = engine.metrics.registry.collect()
    [ended] = [family for family in families if family.name == "radixserve:request_success"]
    return int(sum(s.value for s in ended.samples if s.name.endswith("_total")))
