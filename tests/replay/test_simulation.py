from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve.core.invariants import check
from radixserve.errors import ConfigError
from radixserve.replay.arrivals import ArrivalMode
from radixserve.replay.cost_model import CostModel
from radixserve.replay.distribution import Distribution
from radixserve.replay.scaled_prompt import ScaledPrompts, default_scale
from radixserve.replay.simulation import ServeCounts, ServeSettings, Simulation
from radixserve.replay.trace import Trace, TraceRequest
from radixserve.types import pack_ids, unpack_ids
from tests.replay.tiny_traces import make_trace, paths

ROUND_COSTS = CostModel(prefill_token_s=1.0, decode_step_s=10.0, kv_token_s=0.0)


def request(
    path: list[int], *, at: float = 0.0, output_len: int = 1, session: str = "", think: float = 0.0
) -> TraceRequest:
    return TraceRequest(
        arrival_s=at,
        path=pack_ids(path),
        prompt_len=len(path),
        output_len=output_len,
        session=session,
        think_s=think,
    )


def serve(
    requests: list[TraceRequest],
    *,
    blocks: int = 100,
    block_size: int = 2,
    arrivals: ArrivalMode = ArrivalMode.RECORDED,
    max_num_seqs: int = 8,
) -> ServeCounts:
    trace = Trace("by hand", tuple(requests), block_size=block_size)
    settings = ServeSettings(
        cost_model=ROUND_COSTS, arrivals=arrivals, order="fcfs", max_num_seqs=max_num_seqs
    )
    return Simulation(trace, blocks, "lru", settings).run()


def test_one_request_takes_its_prompt_and_a_step_for_each_further_token() -> None:
    counts = serve([request([1, 2, 3, 4, 5], at=7.0, output_len=3)])

    assert counts.ttft == Distribution(5.0, 5.0, 5.0, 5.0, 5.0)
    assert counts.wait.max == 0.0
    assert counts.busy_s == 5.0 + 2 * 10.0
    assert counts.makespan_s == 7.0 + 25.0
    assert (counts.prompt_tokens, counts.output_tokens, counts.finished) == (5, 3, 1)


def test_a_cached_prompt_costs_its_last_token_only() -> None:
    counts = serve([request([1, 2, 3, 4, 5]), request([1, 2, 3, 4, 5], at=100.0)])

    assert counts.cached_tokens == 4
    assert counts.ttft.max == 5.0
    assert counts.ttft.mean == (5.0 + counts.makespan_s - 100.0) / 2
    assert counts.hit_rate == 0.4


def test_who_comes_second_waits_for_the_seat_of_the_first() -> None:
    requests = [request([1, 1, 1, 1], output_len=2), request([2, 2, 2], at=1.0)]

    counts = serve(requests, max_num_seqs=1)

    # The first computes its prompt until 4, decodes until 14; the second came at 1.
    assert counts.wait == Distribution(6.5, 0.0, 13.0, 13.0, 13.0)
    assert counts.ttft.max == 16.0


def test_a_batch_arrives_at_once_and_a_session_waits_for_its_answers() -> None:
    requests = [
        request([1, 2], session="a", output_len=2),
        request([1, 2, 3, 4], at=1.0, session="a", think=5.0),
    ]

    batch = serve(requests, arrivals=ArrivalMode.BATCH, max_num_seqs=1)
    closed = serve(requests, arrivals=ArrivalMode.SESSIONS)

    assert batch.wait.max == 12.0
    assert closed.wait.max == 0.0
    # Prompt 2, decode 10, think 5, then two tokens that the cache does not have.
    assert closed.makespan_s == 19.0


def test_a_request_that_never_fits_is_counted_and_left_out() -> None:
    counts = serve([request(list(range(50))), request([1, 2])], blocks=5)

    assert (counts.refused, counts.finished) == (1, 1)


def test_a_small_pool_preempts_and_evicts_and_still_answers_all() -> None:
    requests = [request([number, 1, 2, 3], output_len=30) for number in range(6)]

    counts = serve(requests, blocks=20)

    assert counts.finished == 6
    assert counts.output_tokens == 180
    assert counts.preemptions > 0
    assert counts.evicted_blocks > 0


@given(
    paths(most_requests=12, most_ids=9),
    st.sampled_from(["fcfs", "lpm", "dfs", "sweep"]),
    st.sampled_from(ArrivalMode),
    st.integers(1, 3),
)
def test_everything_is_answered_and_given_back(
    requests: list[list[int]], order: str, arrivals: ArrivalMode, block_size: int
) -> None:
    trace = make_trace(requests, block_size=block_size)
    settings = ServeSettings(order=order, arrivals=arrivals, max_num_seqs=3)
    simulation = Simulation(trace, 12, "lru", settings)

    counts = simulation.run()

    assert counts.finished == len(requests)
    assert counts.prompt_tokens == sum(map(len, requests))
    check(simulation.scheduler)
    stats = simulation.scheduler.stats()
    assert (stats.private_blocks, stats.protected_blocks, stats.num_waiting) == (0, 0, 0)


def test_an_id_of_many_tokens_is_repeated_and_the_rest_is_the_requests_own() -> None:
    requests = (
        TraceRequest(arrival_s=0.0, path=pack_ids([7, 8]), prompt_len=1100, output_len=64),
        TraceRequest(arrival_s=0.0, path=pack_ids([7]), prompt_len=600, output_len=3),
    )
    trace = Trace("hashed", requests, tokens_per_id=512, block_size=512)
    prompts = ScaledPrompts(trace, 128)

    first, second = (unpack_ids(prompts.tokens(i, each)) for i, each in enumerate(requests))

    assert first == [7, 7, 7, 7, 8, 8, 8, 8]
    assert second == [7, 7, 7, 7]
    assert prompts.block_size == 4
    assert [prompts.output_len(each) for each in requests] == [1, 1]

    finer = ScaledPrompts(trace, 32)
    first, second = (unpack_ids(finer.tokens(i, each)) for i, each in enumerate(requests))
    assert len(first) == 1100 // 32
    assert len(set(first[32:])) == 1
    assert set(first[32:]).isdisjoint(second)


@pytest.mark.parametrize(("tokens_per_id", "scale"), [(1, 1), (16, 1), (64, 4), (512, 16)])
def test_the_scale_leaves_blocks_of_sixteen_tokens(tokens_per_id: int, scale: int) -> None:
    trace = Trace("hashed", (), tokens_per_id=tokens_per_id, block_size=max(16, tokens_per_id))

    assert default_scale(trace) == scale


def test_a_scale_that_cuts_an_id_is_refused() -> None:
    with pytest.raises(ConfigError, match="must divide the trace's 1 tokens"):
        ScaledPrompts(make_trace([[1]]), 2)


def test_a_distribution_is_by_nearest_rank() -> None:
    values = [float(value) for value in range(200, 0, -1)]

    assert Distribution.of(values) == Distribution(100.5, 100.0, 180.0, 198.0, 200.0)
    assert Distribution.of([]) == Distribution(0.0, 0.0, 0.0, 0.0, 0.0)
