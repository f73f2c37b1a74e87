from __future__ import annotations

import numpy as np
import pytest
import torch

from radixserve import kernels
from radixserve.kernels import AttentionPlan, Program, View
from tests.kernels.attention_mix import Arrays, Mix, Request, attend, set_plan

if not kernels.is_available():
    pytest.skip(kernels.why_not(), allow_module_level=True)

MIX = Mix(requests=(Request(qo_len=2, start=40), Request(qo_len=1, start=7)))


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"qo_indptr": ints(0, 2)}, "qo_indptr has 2 entries for 2 requests"),
        ({"qo_indptr": ints(1, 2, 3)}, "qo_indptr does not begin with 0"),
        ({"kv_indptr": ints(0, 3, 2)}, "kv_indptr descends"),
        ({"kv_indptr": ints(0, 2, 5)}, "kv_indptr ends at 5, kv_indices has 3"),
        ({"qo_indptr": ints(0, 0, 3)}, "request 0 has no query token"),
        ({"kv_lens": ints(1, 4)}, "request 0 has 2 query tokens and only 1 tokens of KV"),
        ({"kv_lens": ints(9, 5)}, "request 0 needs 3 blocks, it has 2"),
        ({"kv_indices": ints(5, -1, 2)}, "block id -1"),
        ({"block_size": 0}, "block_size is 0"),
        ({"num_qo_heads": 3}, "3 query heads over 2 KV heads"),
    ],
)
def test_a_batch_that_does_not_fit_together_is_refused(
    change: dict[str, object], message: str
) -> None:
    fitting: dict[str, object] = {
        "qo_indptr": ints(0, 2, 3),
        "kv_indptr": ints(0, 2, 3),
        "kv_indices": ints(5, 3, 2),
        "kv_lens": ints(8, 4),
        "block_size": 4,
        "num_qo_heads": 4,
        "num_kv_heads": 2,
    }
    plan = AttentionPlan()
    plan.set(**fitting)  # type: ignore[arg-type]

    with pytest.raises(ValueError, match=message):
        plan.set(**{**fitting, **change})  # type: ignore[arg-type]

    assert plan.num_rows == 3


def test_arrays_of_another_dtype_are_refused() -> None:
    plan = AttentionPlan()
    with pytest.raises(TypeError):
        plan.set(
            qo_indptr=np.array([0, 1]),
            kv_indptr=ints(0, 1),
            kv_indices=ints(0),
            kv_lens=ints(1),
            block_size=4,
            num_qo_heads=1,
            num_kv_heads=1,
        )


def test_an_unset_plan_has_no_rows() -> None:
    assert AttentionPlan().num_rows == 0


COLUMNS = torch.zeros(4, 2, 16, 16, dtype=torch.bfloat16).permute(0, 3, 1, 2)
"""As K may lie, and V may not."""


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("q", torch.zeros(3, 6, 16, dtype=torch.bfloat16), "q must be float32"),
        ("out", torch.zeros(3, 6, 8), "out must be like q"),
        ("k_pool", torch.zeros(4, 16, 2, 16, dtype=torch.uint8), "k_pool must be float32 or bf"),
        ("v_pool", torch.zeros(4, 16, 2, 16), "v_pool must be bfloat16"),
        ("v_pool", torch.zeros(5, 16, 2, 16, dtype=torch.bfloat16), "v_pool must be bfloat16"),
        ("v_pool", COLUMNS, "pools must have head_dim innermost"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_when_recorded(
    name: str, array: torch.Tensor, message: str
) -> None:
    arrays = {
        "q": torch.zeros(3, 6, 16),
        "k_pool": torch.zeros(4, 16, 2, 16, dtype=torch.bfloat16),
        "v_pool": torch.zeros(4, 16, 2, 16, dtype=torch.bfloat16),
        "out": torch.zeros(3, 6, 16),
    }
    views = {each: View(tensor) for each, tensor in {**arrays, name: array}.items()}
    with pytest.raises(ValueError, match=f"attention: .*{message}"):
        Program().attention(
            views["q"], views["k_pool"], views["v_pool"], AttentionPlan(), views["out"], 1.0
        )


def test_scales_belong_to_int8_and_to_nothing_else() -> None:
    rows = View(torch.zeros(3, 2, 16))
    scale = View(torch.zeros(4, 16, 2, 1))
    for dtype, scales in ((torch.int8, ()), (torch.float32, (scale, scale))):
        pool = View(torch.zeros(4, 16, 2, 16, dtype=dtype))
        with pytest.raises(ValueError, match="k_scale belongs to int8 and to nothing else"):
            Program().attention(rows, pool, pool, AttentionPlan(), rows, 1.0, *scales)


def test_a_head_dim_that_is_no_multiple_of_8_is_refused() -> None:
    rows, pool = View(torch.zeros(3, 2, 12)), View(torch.zeros(4, 16, 2, 12))
    with pytest.raises(ValueError, match="head_dim must be a multiple of 8"):
        Program().attention(rows, pool, pool, AttentionPlan(), rows, 1.0)


def test_query_heads_that_no_whole_group_makes_are_refused() -> None:
    rows, pool = View(torch.zeros(3, 5, 16)), View(torch.zeros(4, 16, 2, 16))
    with pytest.raises(ValueError, match="equally many query heads"):
        Program().attention(rows, pool, pool, AttentionPlan(), rows, 1.0)


def record(plan: AttentionPlan, arrays: Arrays) -> Program:
    program = Program()
    pools = View(arrays.pool.k), View(arrays.pool.v)
    program.attention(View(arrays.q), *pools, plan, View(torch.zeros(arrays.q.shape)), 1.0)
    return program


def test_a_run_of_other_rows_than_planned_is_refused() -> None:
    plan = AttentionPlan()
    set_plan(plan, MIX)
    with pytest.raises(ValueError, match="planned for 3 rows, not 2"):
        record(plan, Arrays.draw(MIX)).run(2)


def test_a_run_of_no_rows_does_nothing_whatever_is_planned() -> None:
    record(AttentionPlan(), Arrays.draw(MIX)).run(0)


@pytest.mark.parametrize("block_size", [8, 32])
def test_a_run_over_another_pool_than_planned_is_refused(block_size: int) -> None:
    plan = AttentionPlan()
    set_plan(plan, Mix(requests=MIX.requests, block_size=block_size))
    with pytest.raises(ValueError, match=f"blocks of {block_size}, got"):
        record(plan, Arrays.draw(MIX)).run(3)


def test_a_block_beyond_the_pool_is_an_index_error_and_the_next_run_works() -> None:
    arrays = Arrays.draw(MIX)
    plan = AttentionPlan()
    set_plan(plan, MIX)
    program = record(plan, arrays)
    table = ints(0, 1, len(arrays.pool.k), 2)
    plan.set(
        qo_indptr=ints(0, 2, 3),
        kv_indptr=ints(0, 3, 4),
        kv_indices=table,
        kv_lens=ints(42, 8),
        block_size=16,
        num_qo_heads=6,
        num_kv_heads=2,
    )
    with pytest.raises(IndexError, match="is not in a pool of"):
        program.run(3)

    set_plan(plan, MIX)
    program.run(3)


def test_one_plan_serves_batches_of_any_size_in_turn() -> None:
    plan = AttentionPlan()
    for count in (1, 30, 2):
        mix = Mix(requests=(Request(qo_len=1, start=200),) * count)
        arrays = Arrays.draw(mix)
        out = torch.zeros(arrays.q.shape)
        program = Program()
        pools = View(arrays.pool.k), View(arrays.pool.v)
        program.attention(View(arrays.q), *pools, plan, View(out), mix.head_dim**-0.5)
        set_plan(plan, mix)
        program.run(count)

        assert torch.equal(out, attend(mix, arrays))
