"""A stream of events: real statuses before the first one, one end, no silent failure."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import orjson
import pytest
from aiohttp import web

from radixserve.errors import BackendError, QueueFullError, RequestAbortedError
from radixserve.server import sse
from radixserve.server.errors import error_middleware
from radixserve.server.sse import SSEWriter

if TYPE_CHECKING:
    from tests.server.conftest import OpenClient


def app_that_streams(*, events: int, then: Exception | None = None) -> web.Application:
    async def stream(request: web.Request) -> web.StreamResponse:
        async with SSEWriter(request) as writer:
            for number in range(events):
                await writer.send({"number": number})
            if then is not None:
                raise then
        return writer.response

    app = web.Application(middlewares=[error_middleware])
    app.router.add_get("/stream", stream)
    return app


async def test_events_come_in_order_and_end_with_done(open_client: OpenClient) -> None:
    client = await open_client(app_that_streams(events=3))
    response = await client.get("/stream")
    assert response.status == 200
    assert response.headers["Content-Type"].startswith("text/event-stream")
    assert await response.text() == (
        'data: {"number":0}\n\ndata: {"number":1}\n\ndata: {"number":2}\n\ndata: [DONE]\n\n'
    )


async def test_an_error_before_the_first_event_is_an_ordinary_response(
    open_client: OpenClient,
) -> None:
    client = await open_client(app_that_streams(events=0, then=QueueFullError("full")))
    response = await client.get("/stream")
    assert response.status == 429
    assert response.content_type == "application/json"
    assert (await response.json())["error"]["code"] == "queue_full"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RequestAbortedError("The server is shutting down."), "request_aborted"),
        (BackendError("a secret"), "backend_error"),
        (KeyError("a secret"), "internal_error"),
    ],
)
async def test_an_error_after_the_first_event_becomes_an_event(
    error: Exception, code: str, open_client: OpenClient
) -> None:
    client = await open_client(app_that_streams(events=1, then=error))
    response = await client.get("/stream")
    first, failure, done, rest = (await response.text()).split("\n\n")
    assert first == 'data: {"number":0}'
    told = orjson.loads(failure.removeprefix("data: "))["error"]
    assert told["code"] == code
    assert "secret" not in failure
    assert (done, rest) == ("data: [DONE]", "")


async def test_a_client_that_goes_away_cancels_a_handler_that_writes_nothing(
    open_client: OpenClient,
) -> None:
    entered, left = asyncio.Event(), asyncio.Event()

    async def wait(request: web.Request) -> web.StreamResponse:
        async with SSEWriter(request) as writer:
            entered.set()
            try:
                await asyncio.Event().wait()
            finally:
                left.set()
        return writer.response

    app = web.Application(middlewares=[error_middleware])
    app.router.add_get("/wait", wait)
    client = await open_client(app)
    asking = asyncio.create_task(client.get("/wait"))
    await entered.wait()
    asking.cancel()
    await asyncio.wait_for(left.wait(), timeout=30)


async def test_a_reader_that_stops_reading_stops_the_writer(open_client: OpenClient) -> None:
    sent = 0
    left = asyncio.Event()

    async def flood(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        try:
            async with SSEWriter(request) as writer:
                for _ in range(100_000):
                    await writer.send({"text": "x" * 1000})
                    sent += 1
            return writer.response
        finally:
            left.set()

    app = web.Application(middlewares=[error_middleware])
    app.router.add_get("/flood", flood)
    client = await open_client(app)
    response = await client.get("/flood")
    before = -1
    while sent != before:
        before = sent
        await asyncio.sleep(0.05)
    assert 0 < sent < 50_000
    response.close()
    await asyncio.wait_for(left.wait(), timeout=30)


@pytest.fixture
def quick_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send comments so often that no test has to wait for one."""
    monkeypatch.setattr(sse, "KEEP_ALIVE_S", 0.005)


@pytest.mark.usefixtures("quick_comments")
async def test_a_silent_stream_is_kept_alive_by_comments(open_client: OpenClient) -> None:
    go_on = asyncio.Event()

    async def wait(request: web.Request) -> web.StreamResponse:
        async with SSEWriter(request) as writer:
            await go_on.wait()
            await writer.send({"number": 1})
        return writer.response

    app = web.Application(middlewares=[error_middleware])
    app.router.add_get("/wait", wait)
    client = await open_client(app)
    response = await client.get("/wait")
    for _ in range(3):
        assert await response.content.readuntil(b"\n\n") == b": keep-alive\n\n"
    go_on.set()
    rest = (await response.text()).replace(": keep-alive\n\n", "")
    assert rest == 'data: {"number":1}\n\ndata: [DONE]\n\n'


@pytest.mark.usefixtures("quick_comments")
async def test_a_failure_after_a_comment_is_an_event(open_client: OpenClient) -> None:
    go_on = asyncio.Event()

    async def fail(request: web.Request) -> web.StreamResponse:
        async with SSEWriter(request) as writer:
            await go_on.wait()
            raise QueueFullError("full")
        return writer.response

    app = web.Application(middlewares=[error_middleware])
    app.router.add_get("/fail", fail)
    client = await open_client(app)
    response = await client.get("/fail")
    go_on.set()
    assert response.status == 200
    events = (await response.text()).replace(": keep-alive\n\n", "").split("\n\n")
    assert orjson.loads(events[0].removeprefix("data: "))["error"]["code"] == "queue_full"
    assert events[1:] == ["data: [DONE]", ""]


@pytest.mark.usefixtures("quick_comments")
async def test_no_comment_outlives_its_stream(open_client: OpenClient) -> None:
    before = asyncio.all_tasks()
    client = await open_client(app_that_streams(events=2))
    for _ in range(5):
        assert await (await client.get("/stream")).text()
    await client.close()
    assert {task for task in asyncio.all_tasks() - before if "_keep_alive" in repr(task)} == set()
