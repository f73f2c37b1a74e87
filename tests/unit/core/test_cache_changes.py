"""Flushes and pins between the steps of a busy scheduler: nobody's output changes."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from radixserve.core.eviction.names import find_eviction_policy
from radixserve.core.invariants import check
from radixserve.core.pins import PinRequest
from radixserve.core.prefix_cache import PrefixCache
from radixserve.types import Namespace, ReqId, pack_ids
from tests.kit.builders import Rig

if TYPE_CHECKING:
    from radixserve.core.pins import PinAnswer

NUM_BLOCKS = 40
SPACES = [Namespace(), Namespace(salt="x")]


def make_rig(block_size: int, **config: Any) -> Rig:
    make_index = find_eviction_policy("lru", num_blocks=NUM_BLOCKS, block_size=block_size)
    cache = PrefixCache(num_blocks=NUM_BLOCKS, block_size=block_size, make_index=make_index)
    return Rig(num_blocks=NUM_BLOCKS, block_size=block_size, cache=cache, **config)


@pytest.mark.parametrize("seed", range(12))
def test_flushes_and_pins_at_any_moment_change_nobodys_output(seed: int) -> None:
    dice = random.Random(seed)
    rig = make_rig(dice.choice([1, 2, 4]), max_num_seqs=4, max_num_batched_tokens=8)
    pins = rig.cache.pins
    answers: list[PinAnswer] = []

    def change() -> None:
        fate, space = dice.random(), dice.choice(SPACES)
        if fate < 0.4:
            rig.cache.flush(dice.choice([None, space]))
        elif fate < 0.8:
            key = pack_ids(range(dice.randint(1, 3), dice.randint(4, 20)))
            answers.append(pins.pin(PinRequest(key=key, namespace=space, ttl_s=9.0)))
        elif len(pins):
            pins.unpin(dice.choice([pin.name for pin in pins]))
        check(rig.scheduler)

    for number in range(40):
        start = dice.randint(1, 3)
        prompt = [*range(start, start + dice.randint(1, 12)), dice.randint(20, 22)]
        space = dice.choice(SPACES)
        rig.add(f"r{number}", prompt, max_tokens=dice.randint(1, 8), namespace=space)
        for _ in range(dice.randint(0, 2)):
            rig.scheduler.between_steps(change)
            if dice.random() < 0.1:
                rig.scheduler.abort(ReqId(f"r{dice.randint(0, number)}"))
            rig.step()
    rig.drain()

    assert any(answer.is_pinned for answer in answers)
    for name in rig.specs:
        assert rig.tokens[name] == rig.expected(name)[: len(rig.tokens[name])]
    rig.cache.flush()
    assert rig.cache.pool.num_free == NUM_BLOCKS
    assert len(pins) == pins.held_blocks == 0


def test_work_in_the_inbox_is_done_in_its_turn_and_with_no_plan_in_flight() -> None:
    rig = make_rig(2)
    seen: list[tuple[str, bool]] = []
    rig.add("a", [1, 2, 3])
    plan = rig.plan()
    rig.scheduler.abort(ReqId("a"))
    rig.scheduler.between_steps(
        lambda: seen.append((repr(rig.cache), rig.scheduler.in_flight is None))
    )
    assert rig.scheduler.has_work
    assert seen == []

    rig.land(plan)
    rig.step()

    assert seen == [("<PrefixCache free=39 private=0 evictable=1 protected=0>", True)]


def test_work_alone_makes_a_step() -> None:
    rig = make_rig(2)
    done: list[int] = []
    rig.scheduler.between_steps(lambda: done.append(rig.cache.flush()))

    assert rig.scheduler.has_work
    rig.step()

    assert done == [0]
    assert not rig.scheduler.has_work
