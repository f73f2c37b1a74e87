"""Batches on a server, through OpenAI's own client: created, watched, cancelled, read."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import openai
import pytest
from blockbuster import blockbuster_ctx

from radixserve.config import HttpConfig, KeyConfig
from radixserve.server.batch_job import BatchJob
from radixserve.server.store.files import FileStore
from tests.batch.conftest import serving
from tests.batch.lines import few_shot, line, write
from tests.kit.engines import PATIENCE_S, StepGate, assert_idle, until
from tests.kit.running import running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from openai.types import Batch

    from radixserve.config import EngineConfig
    from radixserve.engine.async_engine import AsyncEngine
    from tests.batch.conftest import Serve

KEY, OTHER, ADMIN = "sk-one", "sk-two", "sk-admin"
KEYS = KeyConfig(api_keys=(KEY, OTHER), admin_api_keys=(ADMIN,))
ENDPOINT: Final = "/v1/completions"
ENDED = {"completed", "failed", "expired", "cancelled"}


@asynccontextmanager
async def client_of(url: str, key: str = "none") -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
        yield client


@pytest.fixture
async def api(serve: Serve, tmp_path: Path) -> AsyncIterator[openai.AsyncOpenAI]:
    """Return a client of a server that keeps batches."""
    async with client_of(await serve(HttpConfig(data_dir=str(tmp_path / "data")))) as client:
        yield client


async def begin(
    api: openai.AsyncOpenAI, lines: Sequence[str], endpoint: Any = ENDPOINT, **fields: Any
) -> Batch:
    content = "".join(text + "\n" for text in lines).encode()
    file = await api.files.create(file=("in.jsonl", content), purpose="batch")
    asked = {"completion_window": "24h"} | fields
    return await api.batches.create(input_file_id=file.id, endpoint=endpoint, **asked)


async def ended(api: openai.AsyncOpenAI, batch: Batch) -> Batch:
    async with asyncio.timeout(PATIENCE_S):
        while batch.status not in ENDED:
            await asyncio.sleep(0.02)
            batch = await api.batches.retrieve(batch.id)
    return batch


async def content(api: openai.AsyncOpenAI, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    text = (await api.files.content(file_id)).text
    assert text.endswith("\n")
    return [json.loads(each) for each in text.splitlines()]


async def test_a_batch_runs_to_its_end(api: openai.AsyncOpenAI, engine: AsyncEngine) -> None:
    lines = few_shot(5, 6)
    batch = await begin(api, lines, metadata={"of": "tests"})
    assert batch.status in ("validating", "in_progress")
    assert (batch.object, batch.endpoint, batch.completion_window) == ("batch", ENDPOINT, "24h")
    batch = await ended(api, batch)
    assert batch.status == "completed"
    assert batch.metadata == {"of": "tests"}
    assert batch.request_counts is not None
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (30, 30, 0)
    assert batch.error_file_id is None
    found = await content(api, batch.output_file_id)
    assert sorted(each["custom_id"] for each in found) == sorted(
        json.loads(text)["custom_id"] for text in lines
    )
    assert all(each["response"]["status_code"] == 200 and each["error"] is None for each in found)
    assert batch.usage is not None
    assert batch.usage.input_tokens == engine.stats().prompt_tokens
    assert batch.usage.input_tokens_details.cached_tokens == engine.stats().cached_tokens > 0
    times = (batch.created_at, batch.in_progress_at, batch.finalizing_at, batch.completed_at)
    assert all(times)
    assert list(times) == sorted(time for time in times if time)
    assert_idle(engine.core)


async def test_faults_and_failures_are_told_line_by_line(api: openai.AsyncOpenAI) -> None:
    lines = [
        line("good"),
        "{bad",
        line("good"),
        line("chat", url="/v1/chat/completions", messages=[]),
        line("refused", colour="blue"),
    ]
    batch = await ended(api, await begin(api, lines))
    assert batch.status == "completed"
    assert batch.request_counts is not None
    assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 4)
    assert [each["custom_id"] for each in await content(api, batch.output_file_id)] == ["good"]
    failed = await content(api, batch.error_file_id)
    codes = {each["error"]["line"]: each["error"]["code"] for each in failed if each["error"]}
    assert codes == {2: "invalid_json", 3: "duplicate_custom_id", 4: "invalid_url"}
    [refused] = [each for each in failed if each["response"]]
    assert refused["response"]["status_code"] == 400
    assert refused["response"]["body"]["error"]["param"] == "colour"


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Who?"}]}),
        ("/v1/responses", {"input": "Who?", "max_output_tokens": 16}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "Who?"}], "max_tokens": 3}),
    ],
)
async def test_every_generating_route_can_be_asked_for(
    api: openai.AsyncOpenAI, endpoint: str, body: dict[str, Any]
) -> None:
    fields = {"max_tokens": 4} | body if endpoint != "/v1/responses" else body
    batch = await begin(api, [line("a", url=endpoint, **fields)], endpoint)
    batch = await ended(api, batch)
    [found] = await content(api, batch.output_file_id)
    assert found["response"]["status_code"] == 200
    assert found["response"]["body"]["model"] == "tiny"


async def test_a_file_without_requests_fails_as_a_whole(api: openai.AsyncOpenAI) -> None:
    batch = await ended(api, await begin(api, ["", ""]))
    assert (batch.status, batch.output_file_id, batch.error_file_id) == ("failed", None, None)
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert [error.code for error in batch.errors.data] == ["empty_file"]


async def test_a_cancelled_batch_keeps_what_it_has(
    api: openai.AsyncOpenAI, engine: AsyncEngine
) -> None:
    lines = [line(f"{i}", max_tokens=50, ignore_eos=True) for i in range(200)]
    batch = await begin(api, lines)
    async with asyncio.timeout(PATIENCE_S):
        while batch.request_counts is None or batch.request_counts.completed < 5:
            await asyncio.sleep(0.02)
            batch = await api.batches.retrieve(batch.id)
    batch = await api.batches.cancel(batch.id)
    assert batch.status in ("cancelling", "cancelled")
    batch = await ended(api, batch)
    assert batch.status == "cancelled"
    assert batch.request_counts is not None
    found = await content(api, batch.output_file_id)
    assert 5 <= len(found) == batch.request_counts.completed < 200
    await until(lambda: engine.stats().num_running == engine.stats().num_waiting == 0)
    assert_idle(engine.core)
    with pytest.raises(openai.ConflictError, match="cannot be cancelled any more"):
        await api.batches.cancel(batch.id)


async def test_files_and_batches_are_listed_in_pages(api: openai.AsyncOpenAI) -> None:
    batches = [await begin(api, [line("a")]) for _ in range(5)]
    for batch in batches:
        await ended(api, batch)
    first = await api.batches.list(limit=2)
    assert [each.id for each in first.data] == [batches[4].id, batches[3].id]
    assert [each.id async for each in api.batches.list(limit=2)] == [
        batch.id for batch in reversed(batches)
    ]
    uploaded = [each async for each in api.files.list(purpose="batch", order="asc", limit=2)]
    assert [each.id for each in uploaded] == [batch.input_file_id for batch in batches]
    assert len([each async for each in api.files.list(limit=3)]) == 10
    with pytest.raises(openai.NotFoundError):
        await api.batches.list(after="batch_none")


async def test_a_file_is_described_read_and_deleted(
    api: openai.AsyncOpenAI, tmp_path: Path
) -> None:
    text = b'{"custom_id": "\xc3\xa4"}\r\n' * 100_000
    file = await api.files.create(file=("w\u00f6rter.jsonl", text), purpose="batch")
    assert (file.bytes, file.filename, file.purpose) == (len(text), "w\u00f6rter.jsonl", "batch")
    assert (await api.files.retrieve(file.id)).bytes == len(text)
    assert (await api.files.content(file.id)).content == text
    assert (await api.files.delete(file.id)).deleted
    for call in (api.files.retrieve, api.files.content, api.files.delete):
        with pytest.raises(openai.NotFoundError):
            await call(file.id)
    assert list((tmp_path / "data" / "files").iterdir()) == []


async def test_a_file_in_use_is_not_deleted(api: openai.AsyncOpenAI, engine: AsyncEngine) -> None:
    gate = StepGate(engine.core)
    batch = await begin(api, [line("a")])
    await gate.arrival()
    with pytest.raises(openai.ConflictError, match=batch.id):
        await api.files.delete(batch.input_file_id)
    gate.open()
    await ended(api, batch)
    assert (await api.files.delete(batch.input_file_id)).deleted


async def test_a_batch_that_has_only_its_results_to_move_does_not_use_its_input(
    api: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    adopt, is_moving, may_move = FileStore.adopt, asyncio.Event(), asyncio.Event()

    async def held(*args: Any, **kwargs: Any) -> str | None:
        is_moving.set()
        await may_move.wait()
        return await adopt(*args, **kwargs)

    monkeypatch.setattr(FileStore, "adopt", held)
    batch = await begin(api, [line("a")])
    await is_moving.wait()
    assert (await api.files.delete(batch.input_file_id)).deleted
    may_move.set()
    assert (await ended(api, batch)).status == "completed"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/v1/embeddings"}, "endpoint"),
        ({"completion_window": "1000h"}, "completion_window"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"input_file_id": ""}, "input_file_id"),
        ({"extra_body": {"colour": "blue"}}, "colour"),
    ],
)
async def test_a_batch_that_makes_no_sense_is_refused(
    api: openai.AsyncOpenAI, fields: dict[str, Any], param: str
) -> None:
    asked: dict[str, Any] = {
        "endpoint": ENDPOINT,
        "completion_window": "24h",
        "input_file_id": "file-1",
    }
    with pytest.raises(openai.BadRequestError) as refused:
        await api.batches.create(**(asked | fields))
    assert refused.value.param == param


async def test_a_batch_needs_a_file_that_there_is(api: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as lost:
        await api.batches.create(
            input_file_id="file-none", endpoint=ENDPOINT, completion_window="24h"
        )
    assert lost.value.param == "input_file_id"


async def test_without_a_data_folder_the_routes_say_how_to_get_one(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with client_of(await serve(HttpConfig())) as api:
        for call in (
            api.files.create(file=("a", b"x"), purpose="batch"),
            api.files.retrieve("file-1"),
            api.batches.retrieve("batch_1"),
            begin(api, [line("a")]),
        ):
            with pytest.raises(openai.BadRequestError, match="without --data-dir"):
                await call
    assert os.listdir(tmp_path) == []


async def test_the_event_loop_never_waits_for_a_disk(
    small_engine: EngineConfig, tmp_path: Path
) -> None:
    async with (
        running(small_engine) as engine,
        serving(engine, HttpConfig(data_dir=str(tmp_path))) as url,
        client_of(url) as api,
    ):
        await ended(api, await begin(api, [line("a")]))
        with blockbuster_ctx():
            batch = await ended(api, await begin(api, [*few_shot(3, 3), "{bad"]))
            await content(api, batch.output_file_id)
            await api.files.delete(batch.input_file_id)
    assert batch.status == "completed"


# Callers


async def test_callers_see_their_own_files_and_batches_only(serve: Serve, tmp_path: Path) -> None:
    url = await serve(HttpConfig(keys=KEYS, data_dir=str(tmp_path)))
    async with AsyncExitStack() as stack:
        one, other, admin = [
            await stack.enter_async_context(client_of(url, key)) for key in (KEY, OTHER, ADMIN)
        ]
        batch = await ended(one, await begin(one, [line("a")]))
        assert batch.output_file_id is not None
        for call, name in (
            (other.batches.retrieve, batch.id),
            (other.batches.cancel, batch.id),
            (other.files.retrieve, batch.input_file_id),
            (other.files.content, batch.output_file_id),
            (other.files.delete, batch.output_file_id),
        ):
            with pytest.raises(openai.NotFoundError):
                await call(name)
        with pytest.raises(openai.NotFoundError):
            await other.batches.create(
                input_file_id=batch.input_file_id, endpoint=ENDPOINT, completion_window="24h"
            )
        assert [each async for each in other.batches.list()] == []
        assert [each async for each in other.files.list()] == []
        assert [each.id async for each in admin.batches.list()] == [batch.id]
        assert len([each async for each in admin.files.list()]) == 2
        with contextlib.suppress(openai.AuthenticationError):
            async with client_of(url, "sk-wrong") as stranger:
                await stranger.files.list()
                pytest.fail("a stranger was let in")


async def test_a_batch_uses_its_callers_part_of_the_cache(serve: Serve, tmp_path: Path) -> None:
    url = await serve(HttpConfig(keys=KEYS, data_dir=str(tmp_path)))
    prompt = "Once upon a time there was a tree that remembered everything. " * 3
    async with client_of(url, KEY) as one, client_of(url, OTHER) as other:
        await one.completions.create(model="tiny", prompt=prompt, max_tokens=1)
        cached = {}
        for name, api in (("one", one), ("other", other)):
            batch = await ended(api, await begin(api, [line("a", prompt)]))
            assert batch.usage is not None
            cached[name] = batch.usage.input_tokens_details.cached_tokens
    assert cached["one"] > 0 == cached["other"]


async def test_others_go_before_batches(serve: Serve, engine: AsyncEngine, tmp_path: Path) -> None:
    url = await serve(HttpConfig(data_dir=str(tmp_path), batch_concurrency=32))
    lines = [line(f"{i}", f"{i} Once", max_tokens=30, ignore_eos=True) for i in range(64)]
    async with client_of(url) as api:
        gate = StepGate(engine.core)
        batch = await begin(api, lines)
        await until(lambda: engine.stats().num_waiting >= 20)
        asked = asyncio.create_task(
            api.completions.create(model="tiny", prompt="the parrot", max_tokens=2)
        )
        await until(lambda: engine.stats().num_waiting + engine.stats().num_running >= 33)
        gate.open()
        await asked
        batch = await api.batches.retrieve(batch.id)
        assert batch.request_counts is not None
        assert batch.request_counts.completed < 16
        assert (await ended(api, batch)).status == "completed"


# Restarts


async def test_a_batch_survives_restarts(small_engine: EngineConfig, tmp_path: Path) -> None:
    lines = [line(f"{i}", f"{i % 7} Once", max_tokens=20, ignore_eos=True) for i in range(120)]
    config = HttpConfig(data_dir=str(tmp_path / "data"), batch_concurrency=4)
    batch: Batch | None = None
    for least in (10, 40):
        async with (
            running(small_engine) as engine,
            serving(engine, config) as url,
            client_of(url) as api,
        ):
            batch = await begin(api, lines) if batch is None else batch
            done = 0
            async with asyncio.timeout(PATIENCE_S):
                while done < least:
                    await asyncio.sleep(0.01)
                    counts = (await api.batches.retrieve(batch.id)).request_counts
                    done = counts.completed if counts else 0
            assert done < 120
    assert batch is not None
    async with (
        running(small_engine) as engine,
        serving(engine, config) as url,
        client_of(url) as api,
    ):
        batch = await ended(api, batch)
        found = await content(api, batch.output_file_id)
        assert engine.core.scheduler.counters.prompt_tokens < batch.usage.input_tokens  # type: ignore[union-attr]
    assert batch.status == "completed"
    assert sorted(int(each["custom_id"]) for each in found) == list(range(120))
    assert list((tmp_path / "data" / "batches").iterdir()) == []


async def test_an_engine_that_stops_first_costs_a_batch_nothing(
    small_engine: EngineConfig, tmp_path: Path
) -> None:
    """As on SIGTERM: the engine refuses what is new while the routes are still there."""
    lines = [line(f"{i}", max_tokens=20, ignore_eos=True) for i in range(60)]
    config = HttpConfig(data_dir=str(tmp_path))
    async with (
        running(small_engine) as engine,
        serving(engine, config) as url,
        client_of(url) as api,
    ):
        batch = await begin(api, lines)
        await until(lambda: engine.stats().output_tokens > 50)
        await engine.stop()
        await asyncio.sleep(0.2)
        batch = await api.batches.retrieve(batch.id)
        assert batch.status == "in_progress"
    async with (
        running(small_engine) as engine,
        serving(engine, config) as url,
        client_of(url) as api,
    ):
        batch = await ended(api, batch)
        assert batch.request_counts is not None
        assert (batch.request_counts.completed, batch.request_counts.failed) == (60, 0)


async def test_a_batch_whose_time_is_up_ends_with_what_it_has(
    small_engine: EngineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = HttpConfig(data_dir=str(tmp_path), batch_concurrency=4)
    lines = [line(f"{i}", max_tokens=20, ignore_eos=True) for i in range(60)]
    async with (
        running(small_engine) as engine,
        serving(engine, config) as url,
        client_of(url) as api,
    ):
        batch = await begin(api, lines, completion_window="1h")
        await until(lambda: engine.stats().output_tokens > 100)
    later = batch.created_at + 3601
    monkeypatch.setattr("radixserve.server.batch_job.time.time", lambda: later)
    async with (
        running(small_engine) as engine,
        serving(engine, config) as url,
        client_of(url) as api,
    ):
        batch = await ended(api, batch)
        assert batch.status == "expired"
        done = await content(api, batch.output_file_id)
        failed = await content(api, batch.error_file_id)
    assert len(done) > 0
    assert {each["error"]["code"] for each in failed} == {"batch_expired"}
    assert sorted(int(each["custom_id"]) for each in done + failed) == list(range(60))


async def test_what_was_never_finished_is_swept_away(
    small_engine: EngineConfig, tmp_path: Path
) -> None:
    config = HttpConfig(data_dir=str(tmp_path))
    async with running(small_engine) as engine:
        async with serving(engine, config) as url, client_of(url) as api:
            batch = await ended(api, await begin(api, [line("a")]))
        for folder in ("files", "uploads"):
            write(tmp_path / folder / "file-lost", ["x"])
        async with serving(engine, config) as url, client_of(url) as api:
            assert len(await content(api, batch.output_file_id)) == 1
            assert (await api.batches.retrieve(batch.id)).status == "completed"
    assert sorted(os.listdir(tmp_path / "files")) == sorted(
        [batch.input_file_id, str(batch.output_file_id)]
    )
    assert os.listdir(tmp_path / "uploads") == []


async def test_a_crash_while_results_are_moved_loses_none(
    small_engine: EngineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [line("a"), line("b", colour="blue")]
    config = HttpConfig(data_dir=str(tmp_path))
    async with running(small_engine) as engine:
        with monkeypatch.context() as patched:
            patched.setattr(BatchJob, "_move", killed_once_moved(BatchJob._move))
            async with serving(engine, config) as url, client_of(url) as api:
                batch = await begin(api, lines)
                await until(lambda: len(os.listdir(tmp_path / "files")) == 3)
        async with serving(engine, config) as url, client_of(url) as api:
            batch = await ended(api, batch)
            assert batch.status == "completed"
            assert len(await content(api, batch.output_file_id)) == 1
            assert len(await content(api, batch.error_file_id)) == 1


def killed_once_moved(move: Any) -> Any:
    """Return a `_move` that never comes back from the last state."""

    async def moved(job: BatchJob, status: str, **changes: Any) -> None:
        if status == "completed":
            await asyncio.Event().wait()
        await move(job, status, **changes)

    return moved


async def test_two_servers_cannot_share_a_folder(
    serve: Serve, engine: AsyncEngine, tmp_path: Path
) -> None:
    from radixserve.errors import ConfigError
    from radixserve.server.run import check_settings

    config = HttpConfig(data_dir=str(tmp_path))
    await serve(config)
    with pytest.raises(ConfigError, match="another server is using"):
        check_settings(config)
    with pytest.raises(ConfigError, match="another server is using"):
        async with serving(engine, config):
            pass
    write(tmp_path / "file", [])
    with pytest.raises(ConfigError, match="data_dir: cannot write"):
        check_settings(HttpConfig(data_dir=str(tmp_path / "file" / "below")))
