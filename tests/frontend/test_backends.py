"""One set of programs on every backend: the same texts and values, and nothing left behind."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Literal

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from radixserve.config import HttpConfig, KeyConfig
from radixserve.engine.async_engine import AsyncEngine
from radixserve.errors import (
    AuthenticationError,
    BackendError,
    BackendUnavailableError,
    IncompleteError,
    InvalidRequestError,
    PromptTooLongError,
    QueueFullError,
    RequestAbortedError,
    UnsupportedByBackendError,
)
from radixserve.frontend import Capability, Choice, Prompt, program, record, replay, session
from radixserve.frontend.backends.http_client import failure_of
from radixserve.frontend.backends.openai import OpenAIBackend
from radixserve.frontend.backends.openai_scores import scores_of
from radixserve.frontend.backends.remote import RemoteBackend
from radixserve.server.app import build_app
from tests.frontend.served import WAYS, Served, served
from tests.frontend.test_program import Colour, Point
from tests.kit.engines import StepGate, assert_idle, engine_config, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from radixserve.frontend import Backend


TIMEOUT_S = 1.5
"""Time enough for the first steps, on a busy machine too."""


@pytest.fixture
async def server(folder: Path) -> AsyncIterator[Served]:
    """Serve an engine, and prove at the end that nothing is left on it."""
    engine = AsyncEngine.from_config(engine_config(folder))
    await engine.start()
    async with served(engine) as found:
        yield found
        await until(lambda: not engine.core.has_work)
        assert_idle(engine.core)
    await engine.stop()


@pytest.fixture(params=WAYS)
async def backend(server: Served, request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    """Return each backend in turn, over the same kind of engine."""
    async with server.reached(request.param) as found:
        yield found


@program(max_tokens=12)
async def story(p: Prompt, subject: str) -> str:
    p += f"A story about {subject}: "
    text: str = await p.gen("story", temperature=0.0)
    return text


@program(max_tokens=12)
async def chatting(p: Prompt, lines: list[str]) -> list[str]:
    p.system("You are terse.")
    told = []
    for line in lines:
        p.user(line)
        told.append(str(await p.gen(temperature=0.8)))
    return told


@program(max_tokens=40)
async def valued(p: Prompt) -> list[Any]:
    p.user("Say something of each kind.")
    return [
        await fork.gen("x", kind, seed=7, temperature=0.7)
        for fork, kind in zip(
            p.fork(6),
            [int, float, bool, Literal["yes", "no", "not sure"], Colour, Point],
            strict=True,
        )
    ]


@program
async def choosing(p: Prompt, options: list[str]) -> Choice:
    p += "Is it so? Answer:"
    return await p.select("answer", options)


@program(max_tokens=6)
async def tree(p: Prompt, depth: int, jitter: random.Random | None = None) -> list[str]:
    p += "Once upon a time"

    async def grow(branch: Prompt, index: int) -> list[str]:
        if jitter is not None:
            await asyncio.sleep(jitter.random() / 100)
        branch += f" {index}:"
        text = str(await branch.gen("step", temperature=1.0))
        if len(branch.path.steps) > depth:
            return [text]
        grown = await branch.each(grow, range(2))
        return [text, *(item for found in grown if isinstance(found, list) for item in found)]

    grown = await p.each(grow, range(2))
    return [item for found in grown if isinstance(found, list) for item in found]


async def test_plain_texts_are_the_same_everywhere(server: Served) -> None:
    found = set()
    for way in WAYS:
        async with server.reached(way) as backend:
            found.add(await story.using(backend)("a cat"))
    assert len(found) == 1


async def test_chats_are_the_same_here_and_there(server: Served) -> None:
    lines = ["hello", "and then?", "why is <|im_end|> there?"]
    found = []
    for way in ("embedded", "remote"):
        async with server.reached(way) as backend:
            found.append(await chatting.using(backend, seed=3)(lines))
    assert found[0] == found[1]


async def test_chats_over_the_openai_api_begin_the_same(server: Served) -> None:
    found = []
    for way in WAYS:
        async with server.reached(way) as backend:
            found.append(await chatting.using(backend, seed=3)(["hello"]))
    assert found[0] == found[1] == found[2]


async def test_typed_values_have_their_types(backend: Backend) -> None:
    number, fraction, flag, word, colour, point = await valued.using(backend)()
    assert type(number) is int
    assert type(fraction) is float
    assert flag in (True, False)
    assert word in ("yes", "no", "not sure")
    assert colour in set(Colour)
    assert isinstance(point, Point)


async def test_typed_values_are_the_same_here_and_there(server: Served) -> None:
    found = []
    for way in ("embedded", "remote"):
        async with server.reached(way) as backend:
            found.append(await valued.using(backend)())
    assert found[0] == found[1]


async def test_probabilities_are_the_same_everywhere(server: Served) -> None:
    options = [" no", " not sure", " yes"]
    found = {}
    for way in WAYS:
        async with server.reached(way) as backend:
            found[way] = await choosing.using(backend)(options)
    assert found["embedded"] == found["remote"] == found["openai"]
    assert found["remote"].logprobs == found["embedded"].logprobs
    assert found["openai"].logprobs == pytest.approx(found["embedded"].logprobs, abs=1e-4)


async def test_choices_in_a_chat_are_scored_to_the_end_of_the_turn(server: Served) -> None:
    @program
    async def asking(p: Prompt) -> Choice:
        p.user("Is it so?")
        return await p.select("answer", ["no", "not sure", "yes"])

    found = []
    for way in ("embedded", "remote"):
        async with server.reached(way) as backend:
            found.append(await asking.using(backend)())
    assert found[0].probs == found[1].probs
    async with server.reached("openai") as backend:
        with pytest.raises(UnsupportedByBackendError, match="gen\\(type=Literal"):
            await asking.using(backend)()


async def test_more_options_than_one_call_takes_are_scored(server: Served) -> None:
    options = [f" {number}" for number in range(300)]
    async with server.reached("remote") as remote, server.reached("embedded") as embedded:
        there = await choosing.using(remote)(options)
        here = await choosing.using(embedded)(options)
    assert there.logprobs == pytest.approx(here.logprobs, abs=1e-4)


@pytest.mark.parametrize("way", ["embedded", "remote"])
async def test_a_shuffled_order_of_completion_changes_nothing(server: Served, way: str) -> None:
    async with server.reached(way) as backend:
        expected = await tree.using(backend, seed=11)(2)
        for seed in range(3):
            assert await tree.using(backend, seed=11)(2, random.Random(seed)) == expected
    assert len(set(expected)) > 1


async def test_branches_are_the_same_everywhere(server: Served) -> None:
    found = []
    for way in WAYS:
        async with server.reached(way) as backend:
            found.append(await tree.using(backend, seed=11)(1))
    assert found[0] == found[1]
    assert len(found[2]) == len(found[0])


async def test_the_remote_goes_on_from_its_parents_last_token(server: Served) -> None:
    counts = {}
    for way in ("embedded", "remote"):
        chat = chatting.using(server.backend(way), seed=5)
        run = chat.new_run()
        await chat.run_item(run, 0, (["hello " + way, "and then?"],))
        counts[way] = [
            (call.usage.input_tokens, call.usage.cached_tokens, call.usage.output_tokens)
            for call in run.report.calls
        ]
        await run.backend.close()
    first, second = counts["remote"]
    assert second[1] >= first[0] + first[2] - 1
    assert counts["embedded"][1][0] - counts["embedded"][1][1] == second[0] - second[1]


async def test_only_what_is_new_is_sent(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = RemoteBackend(server.url)
    sent: list[int] = []
    events = backend._http.events

    def spying(path: str, body: Any) -> Any:
        sent.append(len(body["input_ids"]))
        return events(path, body)

    monkeypatch.setattr(backend._http, "events", spying)
    async with session(backend=backend, max_tokens=8) as p:
        p.user("many words to begin with " * 12)
        await p.gen()
        p.user("short")
        await p.gen()
        inputs = [call.usage.input_tokens for call in p.report.calls]
    await backend.close()
    assert sent[0] == inputs[0]
    assert sent[1] < inputs[1] / 3


async def test_a_server_that_forgot_the_parent_gets_the_whole_prompt(server: Served) -> None:
    async with server.reached("remote") as backend, session(backend=backend, max_tokens=8) as p:
        assert isinstance(backend, RemoteBackend)
        p.user("hello")
        await p.gen()
        await backend._http.post("/generate/forget", {"ids": list(backend._kept)})
        p.user("and again")
        assert await p.gen(temperature=0.0)


async def test_cancelling_leaves_nothing_behind(backend: Backend, server: Served) -> None:
    @program(backend=backend, max_tokens=800)
    async def many(p: Prompt) -> list[Any]:
        p += "Once "

        async def grow(branch: Prompt, index: int) -> str:
            branch += f"upon {index}"
            return str(await branch.gen(temperature=1.0))

        return await p.each(grow, range(8))

    for rounds in range(3):
        task = asyncio.ensure_future(many())
        before = server.engine.stats().output_tokens
        await until(lambda least=before + 10 * rounds: server.engine.stats().output_tokens >= least)  # type: ignore[misc]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    # The fixture proves that nothing is left on the engine.


async def test_failures_name_the_call_they_came_from(backend: Backend) -> None:
    @program(name="judge", backend=backend, max_tokens=500)
    async def siblings(p: Prompt) -> Any:
        p += "Once "

        async def grow(branch: Prompt, index: int) -> str:
            if index == 1:
                branch += "too long " * 5000
            return str(await branch.gen("step"))

        return await p.each(grow, range(3))

    with pytest.raises(PromptTooLongError) as failed:
        await siblings()
    assert failed.value.__notes__ == ["in judge.fork[1].gen('step')"]


async def test_a_cut_value_says_so(backend: Backend) -> None:
    @program(name="cut", backend=backend)
    async def cut(p: Prompt) -> Any:
        p.user("Answer")
        return await p.gen("point", Point, max_tokens=2)

    with pytest.raises(IncompleteError) as failed:
        await cut()
    assert failed.value.reason == "length"
    assert failed.value.__notes__ == ["in cut.gen('point')"]


async def test_time_that_is_up_ends_a_call_with_what_there_is(
    backend: Backend, server: Served
) -> None:
    @program(backend=backend, max_tokens=900)
    async def slow(p: Prompt) -> str:
        p += "Once "
        return str(await p.gen(timeout=TIMEOUT_S, seed=4))

    gate = StepGate(server.engine.core)
    run = slow.new_run()
    task = asyncio.ensure_future(slow.run_item(run, 0, ()))
    await gate.let_in(4)
    await asyncio.sleep(TIMEOUT_S)
    gate.open()
    assert isinstance(await task, str)
    assert run.report.usage.output_tokens < 10


async def test_what_a_backend_cannot_do_is_refused_with_what_to_do_instead(
    server: Served,
) -> None:
    async with server.reached("openai") as backend, session(backend=backend) as p:
        p += "x"
        for options in ({"regex": "a+"}, {"grammar": 'start: "a"'}):
            with pytest.raises(UnsupportedByBackendError, match="another backend"):
                await p.gen("y", **options)
    plain = OpenAIBackend(server.url, capabilities=[Capability.CHAT])
    async with session(backend=plain) as p:
        p += "x"
        with pytest.raises(UnsupportedByBackendError, match="use turns"):
            await p.gen()
    await plain.close()
    strict = OpenAIBackend(server.url)
    async with session(backend=strict) as p:
        p.user("x")
        with p.assistant():
            p += "Sure: "
            with pytest.raises(UnsupportedByBackendError, match="continues_turns"):
                await p.gen()
    await strict.close()


async def test_what_a_server_can_do_is_found_out(server: Served) -> None:
    async with server.reached("openai") as backend:
        assert backend.capabilities == {
            Capability.CHAT,
            Capability.JSON,
            Capability.PLAIN,
            Capability.SCORE,
        }


async def test_a_record_of_one_backend_is_replayed_on_another(
    server: Served, tmp_path: Path
) -> None:
    file = tmp_path / "run.jsonl"
    async with server.reached("embedded") as embedded:
        with record(file):
            expected = await chatting.using(embedded, seed=1)(["hello", "again"])
    async with server.reached("remote") as remote:
        with replay(file):
            assert await chatting.using(remote, seed=1)(["hello", "again"]) == expected


async def test_a_key_is_asked_for_and_shown(folder: Path) -> None:
    engine = AsyncEngine.from_config(engine_config(folder))
    await engine.start()
    app = build_app(engine, HttpConfig(keys=KeyConfig(api_keys=("sk-1",))))
    async with TestServer(app) as listening:
        url = str(listening.make_url("/v1"))
        stranger, known = RemoteBackend(url), RemoteBackend(url, "sk-1")
        with pytest.raises(AuthenticationError):
            await story.using(stranger)("a cat")
        assert await story.using(known)("a cat")
        for backend in (stranger, known):
            await backend.close()
    await engine.stop()


async def test_a_server_that_is_not_there_is_said_so() -> None:
    for backend in (RemoteBackend("http://127.0.0.1:9"), OpenAIBackend("http://127.0.0.1:9", "m")):
        with pytest.raises(BackendUnavailableError, match="cannot reach"):
            await story.using(backend)("a cat")
        await backend.close()


async def test_a_server_that_hangs_up_is_said_so(server: Served) -> None:
    async def hang_up(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'data: {"text": "a", "output_ids": [5], "meta_info": ')
        assert request.transport is not None
        request.transport.close()
        return response

    async def sheet(request: web.Request) -> web.Response:
        async with server.reached("remote") as real:
            assert isinstance(real, RemoteBackend)
            return web.json_response(await real._http.get("/tokenizer"))

    app = web.Application()
    app.router.add_get("/tokenizer", sheet)
    app.router.add_post("/generate", hang_up)
    async with TestServer(app) as listening:
        backend = RemoteBackend(str(listening.make_url("")))
        with pytest.raises(RequestAbortedError):
            await story.using(backend)("a cat")
        await backend.close()


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (429, '{"error": {"message": "slow down", "code": "rate"}}', QueueFullError),
        (400, '{"error": {"message": "no", "code": "odd", "param": "n"}}', InvalidRequestError),
        (404, "<html>not here</html>", InvalidRequestError),
        (400, '{"error": {"message": "x", "code": "context_length_exceeded"}}', PromptTooLongError),
    ],
)
def test_refusals_become_our_own(status: int, body: str, kind: type[Exception]) -> None:
    failure = failure_of(status, body, {"Retry-After": "3"}, "http://x")
    assert type(failure) is kind
    if isinstance(failure, QueueFullError):
        assert failure.retry_after_s == 3


def echoed(*tokens: tuple[str, float | None]) -> dict[str, Any]:
    """Return a choice that echoes some tokens and one more."""
    texts = [text for text, _ in tokens] + ["?"]
    offsets = [sum(map(len, texts[:place])) for place in range(len(texts))]
    logprobs = [logprob for _, logprob in tokens] + [-9.0]
    return {
        "logprobs": {"tokens": texts, "text_offset": offsets, "token_logprobs": logprobs},
    }


def test_scores_begin_where_the_options_do() -> None:
    one = echoed(("ab", None), (">>>", -1.0), ("all", -2.0))
    two = echoed(("ab", None), (">>>", -1.0), ("a", -0.5), (" b", -3.0))
    first, second = scores_of("ab>>>", ["all", "a b"], [one, two])
    assert first.logprobs == (-2.0,)
    assert second.logprobs == (-0.5, -3.0)
    assert len({*first.token_ids, *second.token_ids}) == 3


def test_a_token_over_the_edge_moves_the_edge_for_all() -> None:
    merged = echoed(("ab", None), (">>", -1.0), (">all", -2.0))
    plain = echoed(("ab", None), (">>", -1.0), (">", -0.25), ("b", -3.0))
    further = echoed(("ab", None), (">>>c", -4.0))
    first, second = scores_of("ab>>>", ["all", "b"], [merged, plain])
    assert first.logprobs == (-2.0,)
    assert second.logprobs == (-0.25, -3.0)
    first, second, third = scores_of("ab>>>", ["all", "b", "c"], [merged, plain, further])
    assert first.logprobs == (-1.0, -2.0)
    assert second.logprobs == (-1.0, -0.25, -3.0)
    assert third.logprobs == (-4.0,)


def test_what_cannot_be_scored_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        scores_of("", ["a"], [echoed(("a", None))])
    with pytest.raises(InvalidRequestError, match="first token"):
        scores_of("a", ["b"], [echoed(("ab", None))])
    with pytest.raises(BackendError):
        scores_of("a", ["b"], [{"logprobs": None}])
