"""What a step is made of, and how Reqs begin and end."""

from __future__ import annotations

import pytest

from radixserve.core.plan import StepPlan, StepResult
from radixserve.core.req import Req, ReqEvent
from radixserve.errors import InvariantError
from radixserve.types import FinishReason, ReqId, unpack_ids
from tests.kit.builders import Rig, make_spec


def fresh(length: int, seed: int) -> list[int]:
    """A prompt that begins like no other."""
    return [seed * 100_000 + place for place in range(length)]


def shares(plan: StepPlan) -> dict[str, int]:
    return {row.req_id: row.extend_len for row in plan.reqs}


# -- the token budget ----------------------------------------------------------------------------


def test_decodes_and_a_chunk_of_a_prompt_share_a_step() -> None:
    rig = Rig(num_blocks=64, max_num_seqs=4, max_num_batched_tokens=8)
    rig.add("a", fresh(3, 1), max_tokens=9)
    rig.step()
    rig.add("b", fresh(20, 2))

    plans = [rig.step() for _ in range(3)]

    assert [shares(plan) for plan in plans] == [
        {"a": 1, "b": 7},
        {"a": 1, "b": 7},
        {"a": 1, "b": 6},
    ]
    assert [plan.reqs[1].sampling is not None for plan in plans] == [False, False, True]
    rig.drain()
    rig.assert_all_as_if_alone()


def test_a_short_prompt_passes_a_long_one_that_keeps_half_the_budget() -> None:
    rig = Rig(num_blocks=64, max_num_seqs=4, max_num_batched_tokens=8)
    rig.add("long", fresh(60, 1))
    rig.step()
    rig.add("short", fresh(6, 2), max_tokens=1)

    plans = [rig.step() for _ in range(2)]

    assert [shares(plan) for plan in plans] == [{"long": 4, "short": 4}, {"long": 6, "short": 2}]
    assert rig.reason("short") is FinishReason.LENGTH
    assert rig.req("long").computed_len < 60


def test_of_several_prompts_the_oldest_gets_at_least_half_of_every_step() -> None:
    rig = Rig(num_blocks=200, max_num_seqs=8, max_num_batched_tokens=10)
    rig.add("old", fresh(50, 1))
    rig.step()
    for i in range(5):
        rig.add(f"new{i}", fresh(5 + i, i + 2), max_tokens=1)

    while rig.req("old").remaining_len > 5:
        assert shares(rig.step())["old"] >= 5


def test_no_prompt_gets_more_than_a_chunk_in_one_step() -> None:
    rig = Rig(num_blocks=64, max_num_batched_tokens=64, prefill_chunk_len=6)
    rig.add("a", fresh(15, 1), max_tokens=1)

    assert [shares(rig.step()) for _ in range(3)] == [{"a": 6}, {"a": 6}, {"a": 3}]


def test_no_more_requests_run_than_there_are_seats() -> None:
    rig = Rig(num_blocks=64, max_num_seqs=2)
    for i in range(5):
        rig.add(f"r{i}", fresh(4, i), max_tokens=3)

    most = 0
    while rig.scheduler.has_work:
        rig.step()
        most = max(most, len(rig.scheduler.queues.running))

    assert most == 2
    rig.assert_all_as_if_alone()


def test_a_step_with_nothing_to_do_is_an_empty_plan() -> None:
    rig = Rig(num_blocks=4)

    plan = rig.step()

    assert plan.reqs == ()
    assert plan.num_tokens == 0


# -- how a Req ends ------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["length", "stop", "abort"])
def test_a3_every_slot_is_freed_once_however_a_request_ends(ending: str) -> None:
    rig = Rig(num_blocks=256, block_size=1, max_num_batched_tokens=4, max_num_seqs=4)
    free_run = Rig(num_blocks=256, block_size=1, max_num_batched_tokens=4, max_num_seqs=4)
    free_run.add("a", fresh(9, 1), max_tokens=200)
    stop = [free_run.expected("a")[100]] if ending == "stop" else []
    rig.add("a", fresh(9, 1), max_tokens=200, stop=stop)

    while rig.scheduler.has_work:
        rig.step()
        if ending == "abort" and len(rig.tokens["a"]) == 50:
            rig.scheduler.abort(ReqId("a"))

    assert rig.reason("a") is FinishReason(ending)
    assert rig.tokens["a"] == rig.expected("a")[: len(rig.tokens["a"])]
    assert rig.cache.num_private_blocks == 0
    assert rig.cache.flush() == 256 - rig.cache.pool.num_free + rig.cache.num_flushed_blocks
    assert rig.cache.pool.num_free == 256


def test_a_stop_token_does_not_count_before_the_least_length() -> None:
    spec = make_spec("a", [1, 2], stop=[7], max_tokens=4)
    params = spec.params.__class__(max_tokens=4, min_tokens=2, stop_token_ids=frozenset([7]))
    req = Req(spec.__class__(req_id=spec.req_id, prompt=spec.prompt, params=params),
              arrival=1)  # fmt: skip
    ends = [req.append((token,)) for token in (7, 7)]

    assert ends == [None, FinishReason.STOP]


@pytest.mark.parametrize("owner", range(12))
def test_a5_an_abort_in_the_middle_of_a_chunk_waits_for_the_chunk(owner: int) -> None:
    rig = Rig(num_blocks=130, block_size=4, max_num_seqs=8, max_num_batched_tokens=16)
    for i in range(12):
        rig.add(f"r{i}", fresh(50, i), max_tokens=4)
    name = f"r{owner}"
    while not (rig.is_running(name) and rig.req(name).computed_len > 0):
        rig.step()
    plan = rig.plan()

    rig.scheduler.abort(ReqId(name))

    assert rig.is_running(name), "nothing may change while the chunk is running"
    rig.land(plan)
    rig.step()
    assert rig.reason(name) is FinishReason.ABORT
    rig.add("after", fresh(50, 99), max_tokens=4)
    rig.drain()
    assert set(rig.finals) == set(rig.specs)
    for other in set(rig.specs) - {name}:
        assert rig.tokens[other] == rig.expected(other)


def test_an_abort_before_the_first_step_answers_too() -> None:
    rig = Rig(num_blocks=8)
    rig.add("a", [1, 2, 3])
    rig.scheduler.abort(ReqId("a"))
    rig.scheduler.abort(ReqId("a"))
    rig.scheduler.abort(ReqId("nobody"))

    rig.drain()

    assert rig.reason("a") is FinishReason.ABORT
    assert rig.tokens["a"] == []


def test_there_is_work_as_long_as_an_answer_has_not_been_given() -> None:
    rig = Rig(num_blocks=8)
    rig.add("a", [1, 2, 3])
    rig.scheduler.abort(ReqId("a"))

    plan = rig.plan()

    assert not rig.scheduler.is_live(ReqId("a"))
    assert rig.scheduler.has_work
    rig.land(plan)
    assert rig.reason("a") is FinishReason.ABORT
    assert not rig.scheduler.has_work


def test_a_name_can_be_used_again_right_after_its_request_has_ended() -> None:
    rig = Rig(num_blocks=8)
    rig.add("a", [1, 2, 3], max_tokens=1)
    plan = rig.plan()
    rig.scheduler.abort(ReqId("a"))
    rig.land(plan)
    assert rig.finals.pop("a").finish_reason is FinishReason.LENGTH
    rig.tokens.clear()

    rig.add("a", [4, 5, 6], max_tokens=2)
    rig.drain()

    rig.assert_all_as_if_alone()


def test_a_name_in_use_and_an_empty_prompt_are_refused() -> None:
    rig = Rig(num_blocks=8)
    rig.add("a", [1, 2, 3])

    for name, prompt in (("a", [1]), ("b", [])):
        with pytest.raises(InvariantError) as caught:
            rig.scheduler.add(make_spec(name, prompt))
        assert caught.value.number == 9


def test_a_failed_step_ends_its_own_requests_and_nobody_else() -> None:
    rig = Rig(num_blocks=64, max_num_seqs=2, max_num_batched_tokens=16)
    for i in range(4):
        rig.add(f"r{i}", fresh(8, i), max_tokens=3)
    plan = rig.plan()

    rig.fail(plan)

    assert {name: final.error for name, final in rig.finals.items()} == dict.fromkeys(
        ("r0", "r1"), "the device is gone"
    )
    rig.drain()
    assert rig.tokens["r2"] == rig.expected("r2")
    assert rig.tokens["r3"] == rig.expected("r3")


def test_a_failed_row_ends_its_own_request_only() -> None:
    rig = Rig(num_blocks=64, max_num_batched_tokens=64)
    for i in range(3):
        rig.add(f"r{i}", fresh(8, i), max_tokens=3)

    rig.land(rig.plan(), {1: "logits are not finite"})
    rig.drain()

    assert rig.finals["r1"].error == "logits are not finite"
    assert rig.reason("r1") is FinishReason.ERROR
    assert rig.tokens["r0"] == rig.expected("r0")
    assert rig.tokens["r2"] == rig.expected("r2")


def test_a_failed_step_publishes_nothing_of_what_it_may_have_half_written() -> None:
    rig = Rig(num_blocks=64, block_size=4, max_num_batched_tokens=64, prefill_chunk_len=8)
    rig.add("a", fresh(20, 1))
    rig.step()

    rig.fail(rig.plan())

    assert rig.cache.tree.num_evictable_blocks == 2


def test_plans_are_answered_once_and_in_order() -> None:
    rig = Rig(num_blocks=64)
    rig.add("a", [1, 2, 3])
    plan = rig.plan()

    with pytest.raises(InvariantError) as caught:
        rig.scheduler.schedule(0.0)
    assert caught.value.number == 8
    rig.land(plan)
    with pytest.raises(InvariantError) as caught:
        rig.scheduler.update(plan, StepResult(plan.step, (1,)))
    assert caught.value.number == 8
    with pytest.raises(InvariantError) as caught:
        rig.scheduler.fail(plan, "late")
    assert caught.value.number == 8


def test_a_finished_req_cannot_be_admitted_again() -> None:
    req = Req(make_spec("a", [1]), arrival=1)
    req.apply(ReqEvent.FINISH)

    for event in ReqEvent:
        with pytest.raises(InvariantError) as caught:
            req.apply(event)
        assert caught.value.number == 9


# -- what it says --------------------------------------------------------------------------------


def test_outputs_tell_prompt_cached_and_output_lengths() -> None:
    rig = Rig(num_blocks=64, block_size=4)
    rig.add("a", fresh(10, 1), max_tokens=3)
    rig.drain()
    rig.add("b", fresh(10, 1), max_tokens=3)
    rig.drain()

    final = rig.finals["b"]
    assert (final.prompt_len, final.cached_len, final.output_len) == (10, 9, 3)
    stats = rig.scheduler.stats()
    assert (stats.prompt_tokens, stats.cached_tokens, stats.output_tokens) == (20, 9, 6)
    assert (stats.num_waiting, stats.num_running, stats.private_blocks) == (0, 0, 0)
    assert stats.free_blocks + stats.evictable_blocks == 64
    assert stats.kv_usage == 0


def test_the_sampler_sees_the_texts_only_if_it_has_penalties() -> None:
    rig = Rig(num_blocks=64)
    spec = make_spec("a", [1, 2, 3])
    params = spec.params.__class__(max_tokens=3, presence_penalty=1.0, seed=0)
    rig.specs["a"] = spec.__class__(req_id=spec.req_id, prompt=spec.prompt, params=params)
    rig.scheduler.add(rig.specs["a"])
    rig.add("b", [4, 5])

    rig.step()
    plan = rig.step()

    states = {row.req_id: row.sampling for row in plan.reqs}
    a, b = states[ReqId("a")], states[ReqId("b")]
    assert a is not None
    assert b is not None
    assert (unpack_ids(a.prompt_ids), unpack_ids(a.output_ids)) == ([1, 2, 3], rig.tokens["a"][:1])
    assert (b.prompt_ids, b.output_ids, b.output_len) == (b"", b"", 1)
