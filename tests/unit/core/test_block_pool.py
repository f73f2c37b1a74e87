from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve.core.block_pool import BlockPool
from radixserve.errors import InvariantError
from radixserve.types import BlockId


def state(pool: BlockPool) -> tuple[int, list[bool]]:
    return pool.num_free, [pool.is_free(BlockId(block)) for block in range(pool.num_blocks)]


def test_a_fresh_pool_hands_out_ascending_ids() -> None:
    pool = BlockPool(5)

    assert pool.allocate(2) == [0, 1]
    assert pool.allocate(3) == [2, 3, 4]
    assert pool.num_free == 0


def test_what_was_freed_last_is_handed_out_first_and_in_the_same_order() -> None:
    pool = BlockPool(6)
    first, second = pool.allocate(2), pool.allocate(2)
    assert first is not None
    assert second is not None

    pool.free(first)
    pool.free(second)

    assert pool.allocate(4) == [*second, *first]


def test_more_than_there_is_cannot_be_had_and_changes_nothing() -> None:
    pool = BlockPool(3)
    pool.allocate(1)
    before = state(pool)

    assert pool.allocate(3) is None

    assert state(pool) == before
    assert pool.allocate(0) == []
    assert pool.allocate(2) == [1, 2]


@pytest.mark.parametrize(
    "blocks", [[3], [0, 3], [3, 0], [0, 0], [0, 1, 0], [1, 3, 0]], ids=lambda blocks: str(blocks)
)
def test_a_double_free_raises_and_changes_nothing(blocks: list[int]) -> None:
    pool = BlockPool(4)
    pool.allocate(3)
    before = state(pool)

    with pytest.raises(InvariantError) as caught:
        pool.free([BlockId(block) for block in blocks])

    assert caught.value.number == 1
    assert state(pool) == before


@given(st.lists(st.integers(-5, 5), max_size=40))
def test_every_block_is_free_or_handed_out_once(moves: list[int]) -> None:
    """A positive move allocates so many blocks, a negative one frees so many of the oldest."""
    pool, held = BlockPool(8), list[BlockId]()
    for move in moves:
        if move >= 0:
            got = pool.allocate(move)
            assert (got is None) == (move > 8 - len(held))
            held += got or []
        else:
            pool.free(held[:-move])
            del held[:-move]
        assert len(set(held)) == len(held)
        assert pool.num_free == 8 - len(held)
        assert all(pool.is_free(BlockId(block)) == (block not in held) for block in range(8))
