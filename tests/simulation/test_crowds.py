"""Many requests in a pool too small for them, under each method of preemption."""

from __future__ import annotations

import pytest

from radixserve.core.plan import TransferCosts
from tests.kit.builders import Rig

CHEAP_COPIES = TransferCosts(block_bytes=4, copy_bytes_per_s=1e6, prefill_tokens_per_s=10.0)


def fresh(length: int, seed: int) -> list[int]:
    """A prompt that begins like no other."""
    return [seed * 100_000 + place for place in range(length)]


@pytest.mark.parametrize(("mode", "host_blocks"), [("auto", 12), ("recompute", 12), ("swap", 12)])
def test_a_crowd_in_a_small_pool_gets_what_each_would_have_got_alone(
    mode: str, host_blocks: int
) -> None:
    rig = Rig(
        num_blocks=80,
        block_size=4,
        host_blocks=host_blocks,
        costs=CHEAP_COPIES,
        preemption_mode=mode,
        max_num_seqs=16,
    )
    for i in range(24):
        rig.add(f"r{i}", fresh(10 + i, i % 9), max_tokens=90, priority=i % 3 == 0)

    rig.drain()

    rig.assert_all_as_if_alone()
    stats = rig.scheduler.stats()
    assert stats.preemptions > 0
    assert rig.runner.swapped_out_blocks == stats.swapped_out_blocks
    assert rig.runner.swapped_in_blocks == stats.swapped_in_blocks
    assert (stats.swapped_in_blocks > 0) == (mode != "recompute" and host_blocks > 0)
    assert stats.free_host_blocks == stats.host_blocks == host_blocks
