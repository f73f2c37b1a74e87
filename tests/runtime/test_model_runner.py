from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from radixserve.attention.reference import ReferenceAttention
from radixserve.core.plan import (
    BlockCopy,
    BlockSwap,
    SamplingState,
    ScheduledReq,
    StepPlan,
    StepResult,
)
from radixserve.errors import BackendError, InvariantError
from radixserve.runtime.host_kv import HostKV
from radixserve.runtime.kv_cache import KVCache
from radixserve.runtime.model_runner import ModelRunner
from radixserve.runtime.sampler import Sampler
from radixserve.types import BlockId, ReqId, SamplingParams, pack_ids

if TYPE_CHECKING:
    from torch import Tensor

    from radixserve.models.loader import LoadedModel
    from radixserve.runtime.batch import BatchTensors
    from tests.runtime.conftest import MakeRunner

GREEDY = SamplingState(SamplingParams(temperature=0.0), output_len=0)


def make_req(
    token_ids: list[int], blocks: list[int], sampling: SamplingState | None = GREEDY
) -> ScheduledReq:
    return ScheduledReq(ReqId("r"), pack_ids(token_ids), 0, pack_ids(blocks), sampling)


def make_parts(model: LoadedModel) -> tuple[ModelRunner, KVCache]:
    cache = KVCache.allocate(model.spec, 8, 4, torch.float32)
    attention = ReferenceAttention(cache.layers, num_qo_heads=model.spec.num_qo_heads)
    return ModelRunner(model.model, cache, attention, Sampler(model.spec.vocab_size)), cache


def test_an_empty_plan_gives_an_empty_result(make_runner: MakeRunner) -> None:
    assert make_runner(4).execute(StepPlan(3, ())) == StepResult(3, ())


def test_a_plan_of_copies_alone_makes_them(tiny_model: LoadedModel) -> None:
    runner, cache = make_parts(tiny_model)
    cache.layers[1].v[2, :3] = 7.0

    runner.execute(StepPlan(3, (), (BlockCopy(BlockId(2), BlockId(5), 2),)))

    assert cache.layers[1].v[5, :2].eq(7.0).all()
    assert cache.layers[1].v[[0, 1, 3, 4]].eq(0.0).all()


def test_a_block_is_saved_before_the_same_step_swaps_into_it_copies_into_it_or_computes(
    tiny_model: LoadedModel,
) -> None:
    cache = KVCache.allocate(tiny_model.spec, 8, 4, torch.float32)
    host = HostKV.allocate_beside(cache, 4)
    attention = ReferenceAttention(cache.layers, num_qo_heads=tiny_model.spec.num_qo_heads)
    sampler = Sampler(tiny_model.spec.vocab_size)
    runner = ModelRunner(tiny_model.model, cache, attention, sampler, host)
    for block in (1, 2, 3):
        cache.layers[1].k[block] = float(block)
    host.layers[1].k[3] = 9.0
    saved = BlockSwap(ReqId("victim"), pack_ids([1, 2, 3]), pack_ids([0, 1, 2]))
    back = BlockSwap(ReqId("back"), pack_ids([2]), pack_ids([3]))
    copy = BlockCopy(BlockId(2), BlockId(3), 4)

    runner.execute(StepPlan(1, (make_req([5, 6], [1]),), (copy,), (saved,), (back,)))

    assert [float(host.layers[1].k[block, 0, 0, 0]) for block in range(4)] == [1.0, 2.0, 3.0, 9.0]
    assert cache.layers[1].k[2].eq(9.0).all()
    assert cache.layers[1].k[3].eq(9.0).all()
    assert cache.layers[1].k[1, :2].ne(1.0).any()


def test_a_plan_that_swaps_without_a_swap_space_is_our_bug(make_runner: MakeRunner) -> None:
    swap = BlockSwap(ReqId("r"), pack_ids([1]), pack_ids([0]))

    with pytest.raises(InvariantError, match="no swap space"):
        make_runner(4).execute(StepPlan(3, (), swap_outs=(swap,)))


def test_the_next_tokens_stand_at_the_places_of_their_reqs(make_runner: MakeRunner) -> None:
    alone = make_runner(4).execute(StepPlan(1, (make_req([5, 6, 7], [1]),)))
    chunk = make_req([9, 8, 7, 6], [3], sampling=None)

    result = make_runner(4).execute(StepPlan(2, (chunk, make_req([5, 6, 7], [1]), chunk)))

    assert result == StepResult(2, (None, alone.next_tokens[0], None))
    assert alone.next_tokens[0] is not None


def test_a_plan_of_chunks_alone_samples_nothing(make_runner: MakeRunner) -> None:
    result = make_runner(4).execute(StepPlan(2, (make_req([9, 8], [3], sampling=None),)))

    assert result == StepResult(2, (None,))


def test_a_req_whose_kv_is_not_finite_fails_alone(tiny_model: LoadedModel) -> None:
    runner, cache = make_parts(tiny_model)
    clean = runner.execute(StepPlan(1, (make_req([5, 6, 7], [1]),)))
    cache.layers[0].v[2] = torch.nan
    poisoned = ScheduledReq(ReqId("p"), pack_ids([4]), 3, pack_ids([2]), GREEDY)

    result = runner.execute(StepPlan(2, (poisoned, make_req([5, 6, 7], [1]))))

    assert result.next_tokens == (None, clean.next_tokens[0])
    assert set(result.row_errors) == {0}
    assert "not finite" in result.row_errors[0]


def test_a_block_that_held_nan_harms_nobody_who_gets_it_next(tiny_model: LoadedModel) -> None:
    runner, cache = make_parts(tiny_model)
    clean = runner.execute(StepPlan(1, (make_req([5, 6, 7], [1]),)))
    for layer in cache.layers:
        layer.k[1], layer.v[1] = torch.nan, torch.nan

    assert runner.execute(StepPlan(1, (make_req([5, 6, 7], [1]),))) == clean


def test_what_torch_raises_becomes_a_backend_error(make_runner: MakeRunner) -> None:
    with pytest.raises(BackendError, match="step 7 failed") as caught:
        make_runner(4).execute(StepPlan(7, (make_req([10**6], [1]),)))

    assert isinstance(caught.value.__cause__, IndexError)


def test_a_broken_plan_stays_an_invariant_error(make_runner: MakeRunner) -> None:
    with pytest.raises(InvariantError, match="needs 2 blocks"):
        make_runner(4).execute(StepPlan(7, (make_req([1, 2, 3, 4, 5], [1]),)))


def test_a_lost_device_is_no_failure_of_one_step(tiny_model: LoadedModel) -> None:
    class Lost:
        def __call__(self, batch: BatchTensors) -> Tensor:
            raise torch.AcceleratorError("an illegal memory access was encountered")

    _, cache = make_parts(tiny_model)
    sampler, spec = Sampler(tiny_model.spec.vocab_size), tiny_model.spec
    attention = ReferenceAttention(cache.layers, num_qo_heads=spec.num_qo_heads)
    runner = ModelRunner(tiny_model.model, cache, attention, sampler, forward=Lost())

    with pytest.raises(torch.AcceleratorError, match="illegal memory access"):
        runner.execute(StepPlan(7, (make_req([1], [1]),)))


def test_a_runner_works_on_after_a_failed_step(make_runner: MakeRunner) -> None:
    runner, plan = make_runner(4), StepPlan(1, (make_req([5, 6, 7], [1]),))
    expected = runner.execute(plan)
    with pytest.raises(BackendError):
        runner.execute(StepPlan(7, (make_req([10**6], [1]),)))

    assert runner.execute(plan) == expected


def test_a_warm_up_writes_to_the_first_block_only(tiny_model: LoadedModel) -> None:
    runner, cache = make_parts(tiny_model)

    runner.warm_up()

    assert cache.layers[0].k[0, 0].ne(0).any()
    assert cache.layers[0].k.flatten(0, 1)[1:].eq(0).all()
