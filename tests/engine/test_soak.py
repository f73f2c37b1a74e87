"""A thousand short requests, a pool too small for them, and clients that come and go."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from radixserve.core.invariants import check
from radixserve.core.node import Node
from radixserve.core.prefix_cache import Lease
from radixserve.core.req import Req
from radixserve.types import FinishReason, SamplingParams
from tests.kit.engines import ask as make_request
from tests.kit.engines import assert_idle, until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.engine.async_engine import AsyncEngine
    from radixserve.engine.request import GenerateRequest
    from tests.engine.conftest import MakeEngine, StartEngine

NUM_REQUESTS = 1000
NUM_CLIENTS = 64
NUM_BLOCKS = 72
BLOCK_LEN = 4
CHECK_EVERY = 50
MAX_OBJECT_GROWTH = 3000
"""Objects, over hundreds of requests: less than one for each token that they produced."""


@dataclass(slots=True)
class Visit:
    """What a client asks and after how many deltas it leaves; None: it stays to the end."""

    request: GenerateRequest
    leaves_after: int | None
    deltas: int = 0
    tokens: list[int] = field(default_factory=list)
    reasons: list[FinishReason] = field(default_factory=list)


def make_visits(random: Random) -> list[Visit]:
    trunks = [[random.randrange(3, 320) for _ in range(50)] for _ in range(4)]

    def visit(index: int) -> Visit:
        trunk = random.choice(trunks)
        prompt = [*trunk[: random.randint(1, 50)], *random.sample(range(3, 320), 3)]
        # Outputs longer than the room that admission leaves for growth, so that some give way.
        max_tokens = random.randint(70, 120) if random.random() < 0.05 else random.randint(1, 20)
        params = SamplingParams(
            temperature=random.choice((0.0, 0.8)), max_tokens=max_tokens, seed=index
        )
        leaves = random.random() < 0.25
        return Visit(
            make_request(prompt, params=params, priority=random.choice((0, 0, 0, 1))),
            leaves_after=random.randint(0, 5) if leaves else None,
        )

    return [visit(index) for index in range(NUM_REQUESTS)]


async def attend(engine: AsyncEngine, visit: Visit, places: asyncio.Semaphore) -> None:
    async with places, engine.submit(visit.request) as stream:
        if visit.leaves_after == 0:
            return
        async for delta in stream:
            visit.deltas += 1
            visit.tokens += delta.token_ids
            if delta.finish_reason is not None:
                visit.reasons.append(delta.finish_reason)
            if visit.deltas == visit.leaves_after:
                return


async def attend_all(engine: AsyncEngine, visits: Sequence[Visit], random: Random) -> None:
    """Run all visits; every tenth client is cancelled from outside at some moment."""
    places = asyncio.Semaphore(NUM_CLIENTS)
    clients = [asyncio.create_task(attend(engine, visit, places)) for visit in visits]
    victims = random.sample(range(len(clients)), len(clients) // 10)
    for index in sorted(victims):
        await until(lambda index=index: visits[index].deltas > 0 or clients[index].done())  # type: ignore[misc]
        if clients[index].cancel():
            visits[index].leaves_after = visits[index].leaves_after or -1
    outcomes = await asyncio.gather(*clients, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} <= {type(None), asyncio.CancelledError}
    await until(lambda: not engine.core.has_work)


def check_sometimes(engine: AsyncEngine) -> list[int]:
    """Check the invariants after every `CHECK_EVERY`-th step; return the list of those steps."""
    land, checked = engine.core.land, list[int]()

    def land_and_check(plan: Any, result: Any) -> Any:
        events = land(plan, result)
        if plan.step % CHECK_EVERY == 0:
            check(engine.core.scheduler)
            checked.append(plan.step)
        return events

    engine.core.land = land_and_check  # type: ignore[method-assign]
    return checked


def count_objects() -> tuple[int, Counter[type]]:
    gc.collect()
    objects = gc.get_objects()
    return len(objects), Counter(type(thing) for thing in objects)


@pytest.mark.usefixtures("eager_admission")
async def test_a_thousand_requests_leave_nothing_behind(
    start_engine: StartEngine, make_engine: MakeEngine
) -> None:
    _, others = count_objects()
    engine = await start_engine(
        num_blocks=NUM_BLOCKS, block_size=BLOCK_LEN, max_num_seqs=24, max_num_batched_tokens=128
    )
    random = Random(11)
    visits, checked = make_visits(random), check_sometimes(engine)

    await attend_all(engine, visits[: NUM_REQUESTS // 2], random)
    num_before, _ = count_objects()
    await attend_all(engine, visits[NUM_REQUESTS // 2 :], random)
    num_after, kinds = count_objects()

    # Nothing is left but the tree.
    assert_idle(engine.core)
    assert not engine._streams
    assert kinds[Req] <= others[Req]
    assert kinds[Lease] <= others[Lease]
    assert kinds[Node] <= others[Node] + NUM_BLOCKS + 1
    assert num_after - num_before < MAX_OBJECT_GROWTH
    assert len(checked) > 3

    # Every request had exactly one outcome.
    stats = engine.stats()
    assert stats.preemptions > 0
    assert stats.evicted_blocks > NUM_BLOCKS
    ended = [visit for visit in visits if visit.reasons]
    assert all(visit.reasons == [FinishReason.LENGTH] for visit in ended)
    assert all(visit.reasons or visit.leaves_after for visit in visits if visit.deltas)
    assert NUM_REQUESTS // 2 < len(ended) < NUM_REQUESTS
    assert num_outcomes(engine) == NUM_REQUESTS

    # And a sample of them had the tokens that they have alone.
    alone = make_engine(prefix_cache=False)
    sample = ended[:: len(ended) // 25]
    for visit, completion in zip(sample, alone.run([v.request for v in sample]), strict=True):
        assert tuple(visit.tokens) == completion.token_ids


def num_outcomes(engine: AsyncEngine) -> int:
    """Requests that the metrics count as ended, for whatever reason."""
    families = engine.metrics.registry.collect()
    [ended] = [family for family in families if family.name == "radixserve:request_success"]
    return int(sum(s.value for s in ended.samples if s.name.endswith("_total")))
