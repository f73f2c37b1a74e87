"""A thousand short requests, a pool too small for them, and clients that come and go."""

from __future__ import annotations

import gc
from collections import Counter
from random import Random
from typing import TYPE_CHECKING

import pytest

from radixserve.core.node import Node
from radixserve.core.prefix_cache import Lease
from radixserve.core.req import Req
from radixserve.types import FinishReason, SamplingParams
from tests.kit.engines import ask as make_request
from tests.kit.engines import assert_idle
from tests.kit.visits import Visit, attend_all, check_sometimes, num_outcomes

if TYPE_CHECKING:
    from tests.engine.conftest import MakeEngine, StartEngine

NUM_REQUESTS = 1000
NUM_CLIENTS = 64
NUM_BLOCKS = 72
BLOCK_LEN = 4
CHECK_EVERY = 50
MAX_OBJECT_GROWTH = 3000
"""Objects, over hundreds of requests: less than one for each token that they produced."""


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
    visits, checked = make_visits(random), check_sometimes(engine, every=CHECK_EVERY)

    await attend_all(engine, visits[: NUM_REQUESTS // 2], random, num_clients=NUM_CLIENTS)
    num_before, _ = count_objects()
    await attend_all(engine, visits[NUM_REQUESTS // 2 :], random, num_clients=NUM_CLIENTS)
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
