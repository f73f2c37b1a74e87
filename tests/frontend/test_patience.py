"""A backend that has no room: calls come again, and it does not matter which backend it is."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from radixserve.config import HttpConfig
from radixserve.engine.async_engine import AsyncEngine
from radixserve.errors import (
    BackendError,
    EngineDeadError,
    QueueFullError,
    RadixServeError,
    RequestAbortedError,
    ShuttingDownError,
)
from radixserve.frontend import Capability, EmbeddedBackend, Prompt, program, session
from radixserve.frontend.backends.http_client import failure_of
from radixserve.frontend.backends.openai import OpenAIBackend
from radixserve.frontend.backends.patience import (
    FIRST_WAIT_S,
    LONGEST_WAIT_S,
    SPREAD,
    Waits,
)
from radixserve.frontend.backends.remote import RemoteBackend
from radixserve.server.app import build_app
from tests.frontend.conftest import settled
from tests.frontend.served import WAYS, Served, served
from tests.kit.engines import StepGate, ask, engine_config, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from radixserve.frontend import Backend
    from radixserve.frontend.backends.protocol import GenCall, GenDone
    from radixserve.frontend.report import Report

QUEUE_LEN = 3


class Busy:
    """A server that one request keeps busy, and others wait until its queue is full.

    Args:
        server: With a queue of `QUEUE_LEN`.
        stack: Gives the requests up at the end.
    """

    def __init__(self, server: Served, stack: AsyncExitStack) -> None:
        self.server = server
        self.gate: StepGate | None = None
        self._stack = stack

    @property
    def num_refused(self) -> int:
        """How many requests have been refused."""
        return sum(self.server.engine.metrics._rejected.values())

    async def fill(self) -> None:
        """Fill the queue behind a forward pass that waits."""
        engine = self.server.engine
        self.gate = StepGate(engine.core)
        await self._stack.enter_async_context(engine.submit(ask([5, 6, 7], max_tokens=2)))
        await self.gate.arrival()
        for number in range(QUEUE_LEN):
            request = ask([8 + number, 9], max_tokens=2)
            await self._stack.enter_async_context(engine.submit(request))

    async def drain(self, refused: int) -> None:
        """Let everything go on once so many requests have been refused."""
        await until(lambda: self.num_refused >= refused)
        self.release()

    def release(self) -> None:
        """Let everything go on."""
        if self.gate is not None:
            self.gate.open()


@pytest.fixture
async def server(folder: Path) -> AsyncIterator[Served]:
    """Serve an engine whose queue is short, and prove at the end that nothing is left on it."""
    config = engine_config(folder, max_queue_len=QUEUE_LEN, max_num_seqs=2)
    engine = AsyncEngine.from_config(config)
    await engine.start()
    async with served(engine) as found:
        yield found
        await settled(engine.core)
    await engine.stop()


@pytest.fixture
async def busy(server: Served) -> AsyncIterator[Busy]:
    """Return a server that will be busy once it is filled."""
    async with AsyncExitStack() as stack:
        found = Busy(server, stack)
        yield found
        found.release()


async def all_kinds(backend: Backend) -> Report:
    """Make a call of each kind, side by side."""
    async with session(backend=backend, max_tokens=4) as p:
        p += "Is it so? Answer:"
        gen, select, score, commit = p.fork(4)
        await asyncio.gather(
            gen.gen("x", temperature=0.0),
            select.select("y", [" no", " yes"]),
            score.score(" maybe"),
            commit.commit(),
        )
        return p.report


@pytest.mark.parametrize("way", WAYS)
async def test_every_kind_of_call_comes_again_until_there_is_room(busy: Busy, way: str) -> None:
    async with busy.server.reached(way) as backend:
        await busy.fill()
        task = asyncio.ensure_future(all_kinds(backend))
        await busy.drain(refused=4)
        report = await task
    assert {call.kind for call in report.calls} == {"gen", "select", "score", "warm"}
    assert all(call.usage.waits >= 1 for call in report.calls)
    assert report.waits == sum(call.usage.waits for call in report.calls)
    assert report.retries == 0
    assert f"0 retries, {report.waits} waits" in str(report)


async def test_what_a_busy_server_can_do_is_found_out_too(busy: Busy) -> None:
    await busy.fill()
    backend = busy.server.backend("openai")
    task = asyncio.ensure_future(backend.start())
    await busy.drain(refused=1)
    await task
    assert Capability.SCORE in backend.capabilities
    await backend.close()


@pytest.mark.parametrize("way", WAYS)
async def test_no_wait_outlasts_a_calls_timeout(busy: Busy, way: str) -> None:
    async with busy.server.reached(way) as backend, session(backend=backend, max_tokens=4) as p:
        await busy.fill()
        p += "Is it so? Answer:"
        # The least that a full queue asks to wait is a second.
        for call in (
            p.gen("x", timeout=0.9),
            p.select("x", [" no", " yes"], timeout=0.9),
            p.score(" no", timeout=0.9),
        ):
            with pytest.raises(QueueFullError) as failed:
                await call
            assert failed.value.__notes__[0].startswith("in session.")
        assert busy.num_refused == 3


async def test_what_a_wait_takes_is_taken_off_the_timeout(
    busy: Busy, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeouts: list[float] = []
    async with busy.server.reached("embedded") as backend:
        generate = backend.generate

        def spying(call: Any) -> Any:
            timeouts.append(call.timeout_s)
            return generate(call)

        monkeypatch.setattr(backend, "generate", spying)
        await busy.fill()
        async with session(backend=backend, max_tokens=4) as p:
            p += "Once"
            task = asyncio.ensure_future(p.gen("x", timeout=50))
            await busy.drain(refused=1)
            await task
    assert timeouts[0] == 50
    assert len(timeouts) > 1
    assert all(0 < later <= earlier - 1 for earlier, later in pairwise(timeouts))


@pytest.mark.parametrize("way", WAYS)
async def test_a_call_that_waits_can_be_given_up(busy: Busy, way: str) -> None:
    async with busy.server.reached(way) as backend:
        await busy.fill()
        task = asyncio.ensure_future(all_kinds(backend))
        await until(lambda: busy.num_refused >= 4)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert busy.server.engine.core.scheduler.num_queued == QUEUE_LEN


async def test_more_programs_than_the_queue_takes_are_all_run(server: Served) -> None:
    @program(max_tokens=4)
    async def telling(p: Prompt, subject: str) -> str:
        p += f"A story about {subject}: "
        return str(await p.gen("story", temperature=0.0))

    subjects = [f"number {number}" for number in range(16)]
    async with server.reached("embedded") as here, server.reached("remote") as there:
        found = []
        for backend in (here, there):
            results = await telling.using(backend).map(subjects, progress=False)
            assert results.report.waits > 0
            assert len(results.report.calls) == len(subjects)
            found.append(list(results))
    assert found[0] == found[1]


@asynccontextmanager
async def behind_a_proxy(
    engine: AsyncEngine, refusals: int
) -> AsyncIterator[tuple[str, list[str]]]:
    """Serve an engine behind something that refuses the first calls: (url, paths refused)."""
    refused: list[str] = []

    @web.middleware
    async def refusing(request: web.Request, handler: Any) -> web.StreamResponse:
        is_call = request.path in ("/generate", "/v1/completions")
        if is_call and len(refused) < refusals:
            refused.append(request.path)
            headers = {"Retry-After": "0"}
            return web.Response(status=503, text="<html>busy</html>", headers=headers)
        response: web.StreamResponse = await handler(request)
        return response

    app = build_app(engine, HttpConfig())
    app.middlewares.insert(0, refusing)
    async with TestServer(app) as listening:
        yield str(listening.make_url("")).rstrip("/"), refused


async def test_a_server_that_is_unavailable_for_a_while_is_asked_again(server: Served) -> None:
    async with behind_a_proxy(server.engine, refusals=3) as (url, refused):
        for backend in (
            RemoteBackend(url),
            OpenAIBackend(url, "tiny", capabilities=[Capability.PLAIN]),
        ):
            refused.clear()
            async with session(backend=backend, max_tokens=4) as p:
                p += "Once"
                await p.gen("x", temperature=0.0)
                assert p.report.waits == len(refused) == 3
            await backend.close()


async def test_a_call_that_has_begun_is_not_made_again(server: Served) -> None:
    begun = []

    class Breaking(EmbeddedBackend):
        async def generate(self, call: GenCall) -> AsyncIterator[str | GenDone]:
            begun.append(call)
            async for piece in super().generate(call):
                yield piece
                raise QueueFullError("too late")

    async with session(backend=Breaking(server.engine)) as p:
        p += "Once"
        with pytest.raises(QueueFullError, match="too late"):
            await p.gen("x", max_tokens=500)
    assert len(begun) == 1


DETAILS = '{{"error": {{"message": "m", "code": "{code}"}}}}'


@pytest.mark.parametrize(
    ("status", "body", "headers", "kind", "wanted_s"),
    [
        (429, DETAILS.format(code="queue_full"), {"Retry-After": "7"}, QueueFullError, 7),
        (429, DETAILS.format(code="rate"), {"Retry-After": "0.5"}, QueueFullError, 0.5),
        (429, "<html>slow down</html>", {}, QueueFullError, 1),
        (503, "<html>busy</html>", {"Retry-After": "3"}, BackendError, 3),
        (503, "<html>busy</html>", {}, BackendError, None),
        (503, "", {"Retry-After": "soon"}, BackendError, None),
        (503, DETAILS.format(code="shutting_down"), {"Retry-After": "5"}, ShuttingDownError, 5),
        (503, DETAILS.format(code="engine_dead"), {"Retry-After": "5"}, EngineDeadError, None),
        (
            503,
            DETAILS.format(code="request_aborted"),
            {"Retry-After": "5"},
            RequestAbortedError,
            None,
        ),
        (500, "", {"Retry-After": "3"}, BackendError, None),
    ],
)
def test_refusals_say_when_to_come_again(
    status: int, body: str, headers: dict[str, str], kind: type[Exception], wanted_s: float | None
) -> None:
    failure = failure_of(status, body, headers, "http://x")
    assert type(failure) is kind
    assert failure.retry_after_s == wanted_s


def test_a_refusal_may_name_a_date() -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    failure = failure_of(503, "", {"Retry-After": later}, "http://x")
    assert failure.retry_after_s is not None
    assert 3000 < failure.retry_after_s <= 3600
    failure = failure_of(503, "", {"Retry-After": "Thu, 01 Jan 1970 00:00:00 GMT"}, "http://x")
    assert failure.retry_after_s == 0


def test_waits_grow_and_are_spread_and_never_shorter_than_asked() -> None:
    waits = Waits(timeout_s=1e6)
    for number in range(12):
        least = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**number)
        wait = waits.next_s(QueueFullError("full", retry_after_s=0))
        assert least <= wait <= least * (1 + SPREAD)
    assert waits.count == 12
    assert waits.next_s(QueueFullError("full", retry_after_s=60)) >= 60
    first = {Waits(None).next_s(QueueFullError("full")) for _ in range(20)}
    assert len(first) > 1


def test_what_invites_nobody_is_raised_at_once() -> None:
    for failure in (ShuttingDownError("no"), BackendError("no"), RadixServeError("no")):
        waits = Waits(None)
        with pytest.raises(RadixServeError) as raised:
            waits.next_s(failure)
        assert raised.value is failure
        assert waits.count == 0


def test_giving_up_says_how_often_it_was_tried() -> None:
    waits = Waits(timeout_s=20.0)
    waits.next_s(QueueFullError("full", retry_after_s=1))
    busy = BackendError("busy")
    busy.retry_after_s = 60
    with pytest.raises(BackendError) as failed:
        waits.next_s(busy)
    assert failed.value.__notes__[0].startswith("it came 2 times in ")
