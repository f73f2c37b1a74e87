"""Bounds of the queue, the time to come back, and requests that run out of time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from radixserve.engine.queue_limit import MAX_RETRY_AFTER_S, QueueLimit, StepRate, retry_after_s
from radixserve.errors import InvalidRequestError, QueueFullError, RequestTimeoutError
from radixserve.types import FinishReason
from tests.kit.engines import ask, assert_idle

if TYPE_CHECKING:
    from tests.engine.conftest import MakeEngine, StartEngine

PROMPT = list(range(10, 40))


def test_the_queue_is_bounded_by_requests_and_by_tokens() -> None:
    limit = QueueLimit(max_reqs=3, max_tokens=100)

    assert limit.has_room(2, 99)
    assert not limit.has_room(3, 0)
    assert not limit.has_room(0, 100)
    assert QueueLimit(max_reqs=3).has_room(2, 10**9)


def test_the_time_to_come_back_is_the_queue_over_the_speed() -> None:
    rate = StepRate()
    assert retry_after_s(10_000, rate) == 1

    for _ in range(100):
        rate.observe(50, 0.1)
    assert rate.tokens_per_s == pytest.approx(500)
    assert retry_after_s(5_001, rate) == 11
    assert retry_after_s(10**9, rate) == MAX_RETRY_AFTER_S
    assert retry_after_s(0, rate) == 1


def test_too_many_waiting_tokens_are_refused_and_room_comes_back(make_engine: MakeEngine) -> None:
    engine = make_engine(max_num_seqs=1, max_queued_tokens=40)
    engine.add(ask(PROMPT))
    engine.add(ask(PROMPT))
    with pytest.raises(QueueFullError, match="2 requests with 60 tokens"):
        engine.add(ask(PROMPT))

    while engine.has_work:
        engine.step()
    assert len(engine.run([ask(PROMPT)] * 3)) == 3
    assert_idle(engine.core)


async def test_time_up_in_the_queue_is_an_error_and_later_an_end(
    start_engine: StartEngine,
) -> None:
    engine = await start_engine(max_num_seqs=1)
    now = 0.0
    engine.core._clock = lambda: now

    async with engine.submit(ask(PROMPT, max_tokens=200, timeout_s=5.0)) as running:
        first = await anext(running)
        async with engine.submit(ask(PROMPT, timeout_s=5.0)) as waiting:
            now = 6.0
            with pytest.raises(RequestTimeoutError):
                await anext(waiting)
        last = first
        async for delta in running:
            last = delta

    assert last.finish_reason is FinishReason.TIMEOUT
    assert 0 < last.usage.completion_tokens < 200


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_timeout_without_meaning_is_refused(make_engine: MakeEngine, timeout_s: float) -> None:
    with pytest.raises(InvalidRequestError, match="timeout_s"):
        make_engine().run([ask(PROMPT, timeout_s=timeout_s)])
