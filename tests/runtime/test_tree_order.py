from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve.core.plan import ScheduledReq, StepPlan, StepResult
from radixserve.errors import BackendError
from radixserve.runtime.launch import ImmediateLauncher
from radixserve.runtime.step_times import StepTimes
from radixserve.runtime.tree_order import TreeOrderedLauncher, back_in_place, in_order, tree_order
from radixserve.types import ReqId, TokenLogprob, pack_ids, unpack_ids
from tests.kit.late_launcher import LateLauncher

TABLES = st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=6), max_size=12)


def make_req(name: str, blocks: list[int]) -> ScheduledReq:
    return ScheduledReq(ReqId(name), pack_ids([len(blocks)]), 0, pack_ids(blocks), sampling=None)


def make_plan(tables: list[list[int]]) -> StepPlan:
    return StepPlan(5, tuple(make_req(f"r{row}", table) for row, table in enumerate(tables)))


def told(req: ScheduledReq) -> TokenLogprob:
    return TokenLogprob(len(req.req_id), -float(len(req.block_table)), 1, ())


class EchoRunner:
    """Answers every row by what only that row could be answered by, and keeps the plans it saw."""

    def __init__(self) -> None:
        self.times = StepTimes()
        self.seen: list[StepPlan] = []

    def kernel_seconds(self) -> dict[str, float]:
        return {}

    def execute(self, plan: StepPlan) -> StepResult:
        self.seen.append(plan)
        rows = dict(enumerate(plan.reqs))
        number = {row: int(req.req_id[1:]) for row, req in rows.items()}
        return StepResult(
            plan.step,
            tuple(None if n % 3 == 0 else n for n in number.values()),
            {row: f"{req.req_id} failed" for row, req in rows.items() if number[row] % 3 == 0},
            forced_tokens={row: (n, n + 1) for row, n in number.items() if n % 2},
            logprobs={row: told(req) for row, req in rows.items() if number[row] % 2 == 0},
            prompt_logprobs={row: (told(req),) * number[row] for row, req in rows.items()},
        )


def ordered(runner: EchoRunner) -> TreeOrderedLauncher:
    return TreeOrderedLauncher(LateLauncher(runner))


def test_requests_that_share_blocks_become_neighbours() -> None:
    plan = make_plan([[7, 2, 5], [9], [7, 2, 6], [7, 3]])

    assert tree_order(plan.reqs) == [0, 2, 3, 1]


@given(TABLES)
def test_whoever_begins_with_the_same_blocks_is_in_one_piece_at_every_depth(
    tables: list[list[int]],
) -> None:
    ordered = [tables[row] for row in tree_order(make_plan(tables).reqs)]

    for depth in range(1, 7):
        heads = [tuple(table[:depth]) for table in ordered if len(table) >= depth]
        places = {
            head: [i for i, t in enumerate(ordered) if tuple(t[:depth]) == head] for head in heads
        }
        for run in places.values():
            assert run == list(range(run[0], run[-1] + 1))


@given(TABLES)
def test_the_order_names_every_row_once_and_keeps_equal_tables_in_place(
    tables: list[list[int]],
) -> None:
    order = tree_order(make_plan(tables).reqs)

    assert sorted(order) == list(range(len(tables)))
    for before, after in itertools.pairwise(order):
        assert before < after or tables[before] != tables[after]


@given(TABLES)
def test_a_result_comes_back_as_if_nothing_had_been_moved(tables: list[list[int]]) -> None:
    plan, echo = make_plan(tables), EchoRunner()

    result = ordered(echo).launch(plan).result()

    assert result == EchoRunner().execute(plan)
    [seen] = echo.seen
    assert sorted(req.req_id for req in seen.reqs) == sorted(req.req_id for req in plan.reqs)


@given(TABLES, st.data())
def test_any_order_is_undone(tables: list[list[int]], data: st.DataObject) -> None:
    plan = make_plan(tables)
    order = data.draw(st.permutations(range(len(tables))))

    moved = EchoRunner().execute(in_order(plan, order))

    assert back_in_place(moved, order) == EchoRunner().execute(plan)


def test_a_plan_that_is_in_order_goes_through_untouched() -> None:
    plan, echo = make_plan([[1], [1, 2], [3]]), EchoRunner()

    ordered(echo).launch(plan).result()

    assert echo.seen[0] is plan


def test_an_empty_plan_is_executed_for_its_copies() -> None:
    echo = EchoRunner()

    assert ordered(echo).launch(StepPlan(3, ())).result() == StepResult(3, ())
    assert len(echo.seen) == 1


def test_a_failed_step_stays_failed() -> None:
    class Broken(EchoRunner):
        def execute(self, plan: StepPlan) -> StepResult:
            raise BackendError(f"step {plan.step} failed")

    with pytest.raises(BackendError, match="step 5"):
        ordered(Broken()).launch(make_plan([[2], [1]])).result()


@given(TABLES, TABLES, st.data())
def test_a_row_takes_its_token_from_where_the_row_before_went(
    first: list[list[int]], second: list[list[int]], data: st.DataObject
) -> None:
    """Row n's token is n, so that what a row computes says whose token it took."""
    numbers = [row for row in range(len(first)) if row % 3]
    takes = [data.draw(st.sampled_from(numbers)) for _ in second] if numbers else []
    following = StepPlan(
        6,
        tuple(
            make_req(f"r{row}", table)._replace(takes=take)
            for (row, table), take in zip(enumerate(second), takes, strict=False)
        ),
        follows=5,
    )
    echo = EchoRunner()
    launcher = ordered(echo)
    before, after = launcher.launch(make_plan(first)), launcher.launch(following)

    before.result()
    result = after.result()

    took = {req.req_id: unpack_ids(req.token_ids) for req in echo.seen[1].reqs}
    assert took == {f"r{row}": [take] for row, take in enumerate(takes)}
    assert result == EchoRunner().execute(following)


def test_it_runs_ahead_where_what_it_orders_for_does() -> None:
    assert ordered(EchoRunner()).can_run_ahead
    assert not TreeOrderedLauncher(ImmediateLauncher(EchoRunner())).can_run_ahead
