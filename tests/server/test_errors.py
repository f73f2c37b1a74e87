"""Every failure, on every route, is OpenAI's error body with the right status."""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from radixserve import errors
from radixserve.errors import (
    BackendError,
    BatchError,
    ConfigError,
    EngineDeadError,
    InvariantError,
    ProgramError,
    QueueFullError,
    RadixServeError,
    RequestError,
    ShuttingDownError,
)
from radixserve.server.errors import error_middleware, reply_to
from radixserve.server.request_id import add_request_id

if TYPE_CHECKING:
    from tests.server.conftest import OpenClient


def raised_kinds() -> list[type[RadixServeError]]:
    """Return every class of the error tree that a request can meet."""
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
    tree = [kind for kind in kinds if issubclass(kind, RadixServeError)]
    roots = {RadixServeError, RequestError}
    elsewhere = (ConfigError, ProgramError, BatchError)
    return [kind for kind in tree if kind not in roots and not issubclass(kind, elsewhere)]


def make(kind: type[RadixServeError]) -> RadixServeError:
    return InvariantError(3, "a secret dump") if kind is InvariantError else kind("a sentence")


def assert_envelope(body: Any) -> dict[str, Any]:
    assert list(body) == ["error"]
    assert list(body["error"]) == ["message", "type", "param", "code"]
    assert body["error"]["message"]
    assert body["error"]["type"]
    assert body["error"]["code"]
    return dict(body["error"])


def app_that_raises(error: BaseException) -> web.Application:
    async def fail(request: web.Request) -> web.Response:
        raise error

    async def read(request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    app = web.Application(middlewares=[error_middleware], client_max_size=1024)
    app.on_response_prepare.append(add_request_id)
    app.router.add_get("/fail", fail)
    app.router.add_post("/read", read)
    return app


@pytest.mark.parametrize("kind", raised_kinds())
async def test_every_error_of_the_tree_has_its_envelope(
    kind: type[RadixServeError], open_client: OpenClient
) -> None:
    wanted: Any = kind
    client = await open_client(app_that_raises(make(kind)))
    response = await client.get("/fail")
    told = assert_envelope(await response.json())
    assert response.status == wanted.status_hint
    assert (told["code"], told["type"]) == (wanted.code, wanted.error_type)
    assert ("Retry-After" in response.headers) == (response.status in (429, 503))
    assert ("WWW-Authenticate" in response.headers) == (response.status == 401)


@pytest.mark.parametrize("kind", raised_kinds())
async def test_anthropics_routes_have_anthropics_envelope(
    kind: type[RadixServeError], open_client: OpenClient
) -> None:
    async def fail(request: web.Request) -> web.Response:
        raise make(kind)

    app = web.Application(middlewares=[error_middleware])
    app.router.add_post("/v1/messages/count_tokens", fail)
    client = await open_client(app)
    response = await client.post("/v1/messages/count_tokens")
    told = await response.json()
    wanted: Any = kind
    assert response.status == wanted.status_hint
    assert told["type"] == "error"
    assert told["error"]["message"]
    assert told["error"]["type"] == ANTHROPIC_TYPES[response.status]


ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def test_the_tree_has_leaves_to_test() -> None:
    assert len(raised_kinds()) >= 12


async def test_a_full_queue_says_when_to_come_back(open_client: OpenClient) -> None:
    client = await open_client(app_that_raises(QueueFullError("full", retry_after_s=7)))
    response = await client.get("/fail")
    assert (response.status, response.headers["Retry-After"]) == (429, "7")


@pytest.mark.parametrize(
    "error",
    [ZeroDivisionError("a secret"), BackendError("a secret"), InvariantError(1, "a secret")],
)
async def test_a_crash_is_logged_and_told_in_neutral_words(
    error: Exception, open_client: OpenClient, caplog: pytest.LogCaptureFixture
) -> None:
    client = await open_client(app_that_raises(error))
    with caplog.at_level(logging.ERROR):
        response = await client.get("/fail")
    text = await response.text()
    assert response.status == 500
    assert_envelope(await response.json())
    for hidden in ("secret", "Traceback", "Error:", type(error).__name__):
        assert hidden not in text
    assert any(record.exc_info and record.exc_info[1] is error for record in caplog.records)


@pytest.mark.parametrize("error", [ShuttingDownError("bye"), EngineDeadError("logged before")])
async def test_what_is_no_news_is_not_logged(
    error: Exception, open_client: OpenClient, caplog: pytest.LogCaptureFixture
) -> None:
    client = await open_client(app_that_raises(error))
    with caplog.at_level(logging.WARNING):
        await client.get("/fail")
    assert caplog.records == []


async def test_routes_that_do_not_exist_answer_in_the_envelope(open_client: OpenClient) -> None:
    client = await open_client(app_that_raises(ValueError()))
    response = await client.get("/nothing")
    assert response.status == 404
    assert assert_envelope(await response.json())["code"] == "not_found"


async def test_a_wrong_method_answers_in_the_envelope(open_client: OpenClient) -> None:
    client = await open_client(app_that_raises(ValueError()))
    response = await client.post("/fail")
    assert response.status == 405
    assert assert_envelope(await response.json())["code"] == "method_not_allowed"
    assert "GET" in response.headers["Allow"]


async def test_a_body_over_the_limit_answers_in_the_envelope(open_client: OpenClient) -> None:
    client = await open_client(app_that_raises(ValueError()))
    response = await client.post("/read", data=b"x" * 5000)
    assert response.status == 413
    assert assert_envelope(await response.json())["code"] == "request_too_large"


async def test_a_body_that_cannot_be_unpacked_is_the_callers_fault(
    open_client: OpenClient,
) -> None:
    client = await open_client(app_that_raises(ValueError()))
    headers = {"Content-Encoding": "deflate"}
    response = await client.post("/read", data=b"\x00not deflate", headers=headers)
    assert response.status == 400
    assert_envelope(await response.json())


@pytest.mark.parametrize("given", ["abc-1.2:3_X", "a" * 128])
async def test_a_sane_request_id_comes_back(given: str, open_client: OpenClient) -> None:
    client = await open_client(app_that_raises(ValueError()))
    response = await client.get("/nothing", headers={"X-Request-Id": given})
    assert response.headers["X-Request-Id"] == given


@pytest.mark.parametrize("given", ["", "a b", "a" * 129, "<script>"])
async def test_a_request_id_that_is_not_sane_is_replaced(
    given: str, open_client: OpenClient
) -> None:
    client = await open_client(app_that_raises(ValueError()))
    response = await client.get("/nothing", headers={"X-Request-Id": given})
    assert response.headers["X-Request-Id"].startswith("req-")


def test_an_unavailable_backend_hides_what_is_missing() -> None:
    assert "libsecret" not in reply_to(errors.BackendUnavailableError("libsecret.so")).message
