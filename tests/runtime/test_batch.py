from __future__ import annotations

import pytest

from radixserve.core.plan import SamplingState, ScheduledReq, StepPlan
from radixserve.errors import InvariantError
from radixserve.runtime.batch import build_batch
from radixserve.types import ReqId, SamplingParams, pack_ids

GREEDY = SamplingState(SamplingParams(temperature=0.0), output_len=0)


def make_req(
    token_ids: list[int], start: int, blocks: list[int], sampling: SamplingState | None = GREEDY
) -> ScheduledReq:
    return ScheduledReq(ReqId("r"), pack_ids(token_ids), start, pack_ids(blocks), sampling)


def test_a_mixed_plan_becomes_the_rows_of_its_reqs_one_after_the_other() -> None:
    chunk = make_req([50, 51, 52], 6, [2, 9, 4], sampling=None)
    plan = StepPlan(1, (make_req([10, 11, 12], 0, [7]), chunk, make_req([99], 4, [8, 1])))

    batch = build_batch(plan, 4)

    assert batch.token_ids.tolist() == [10, 11, 12, 50, 51, 52, 99]
    assert batch.positions.tolist() == [0, 1, 2, 6, 7, 8, 4]
    assert batch.metadata.slot_mapping.tolist() == [28, 29, 30, 38, 39, 16, 4]
    assert batch.metadata.kv_lens.tolist() == [3, 9, 5]


def test_only_the_last_row_of_a_req_that_samples_gives_logits() -> None:
    chunk = make_req([50, 51, 52], 6, [2, 9, 4], sampling=None)
    plan = StepPlan(1, (make_req([10, 11, 12], 0, [7]), chunk, make_req([99], 4, [8, 1])))

    assert build_batch(plan, 4).sample_rows.tolist() == [2, 6]


def test_a_plan_of_chunks_alone_samples_nothing() -> None:
    plan = StepPlan(1, (make_req([1, 2], 0, [0], sampling=None),))

    assert build_batch(plan, 4).sample_rows.tolist() == []


def test_a_block_table_that_is_too_short_is_refused() -> None:
    with pytest.raises(InvariantError, match="needs 2 blocks"):
        build_batch(StepPlan(1, (make_req([1], 4, [0]),)), 4)
