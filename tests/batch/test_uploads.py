"""Uploads that are not what they should be leave nothing behind, and hurt nobody."""

from __future__ import annotations

import asyncio
import json
import random
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
import pytest_asyncio

from radixserve.config import HttpConfig
from tests.kit.engines import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.batch.conftest import Serve

MAX_BYTES = 10_000


@pytest_asyncio.fixture
async def session(serve: Serve, tmp_path: Path) -> AsyncIterator[aiohttp.ClientSession]:
    url = await serve(HttpConfig(data_dir=str(tmp_path), max_file_bytes=MAX_BYTES))
    async with aiohttp.ClientSession(url) as session:
        yield session


def kept(folder: Path) -> list[Path]:
    """Return what lies in the folder besides the database."""
    return [*(folder / "files").iterdir(), *(folder / "uploads").iterdir()]


def form(*parts: tuple[str, bytes], closed: bool = True) -> tuple[bytes, dict[str, str]]:
    """Return a form with these parts, and its headers."""
    text = b"".join(
        b"--edge\r\nContent-Disposition: form-data; "
        + head.encode()
        + b"\r\n\r\n"
        + value
        + b"\r\n"
        for head, value in parts
    )
    end = b"--edge--\r\n" if closed else b""
    return text + end, {"Content-Type": "multipart/form-data; boundary=edge"}


FILE = ('name="file"; filename="in.jsonl"', b"{}\n")
PURPOSE = ('name="purpose"', b"batch")


async def post(session: aiohttp.ClientSession, data: bytes, headers: Any) -> tuple[int, Any]:
    async with session.post("/v1/files", data=data, headers=headers) as response:
        return response.status, json.loads(await response.text())


@pytest.mark.parametrize("parts", [(FILE, PURPOSE), (PURPOSE, FILE)])
async def test_the_fields_may_come_in_any_order(
    session: aiohttp.ClientSession, tmp_path: Path, parts: tuple[tuple[str, bytes], ...]
) -> None:
    status, answer = await post(session, *form(*parts))
    assert (status, answer["bytes"], answer["filename"]) == (200, 3, "in.jsonl")
    assert [path.read_bytes() for path in kept(tmp_path)] == [b"{}\n"]


@pytest.mark.parametrize(
    ("parts", "param"),
    [
        ((PURPOSE,), "file"),
        ((FILE,), "purpose"),
        ((FILE, ('name="purpose"', b"fine-tune")), "purpose"),
        ((('name="purpose"', b"b" * 5000), FILE), "purpose"),
        ((FILE, FILE, PURPOSE), "file"),
        ((FILE, PURPOSE, ('name="colour"', b"blue")), "colour"),
        ((), "file"),
    ],
)
async def test_a_form_with_the_wrong_fields_is_refused_by_name(
    session: aiohttp.ClientSession,
    tmp_path: Path,
    parts: tuple[tuple[str, bytes], ...],
    param: str,
) -> None:
    status, answer = await post(session, *form(*parts))
    if parts:
        assert (status, answer["error"]["param"]) == (400, param)
    assert status == 400
    assert kept(tmp_path) == []


@pytest.mark.parametrize(
    ("data", "headers"),
    [
        (b"{}", {"Content-Type": "application/json"}),
        (b"{}", {"Content-Type": "multipart/form-data"}),
        (b"{}", {"Content-Type": "multipart/form-data; boundary=edge"}),
        (b"{}", {"Content-Type": "multipart/mixed; boundary=edge"}),
        form(FILE, PURPOSE, closed=False),
        (form(FILE)[0][:40], form()[1]),
        (b"", form()[1]),
    ],
)
async def test_what_is_no_form_is_refused(
    session: aiohttp.ClientSession, tmp_path: Path, data: bytes, headers: dict[str, str]
) -> None:
    status, answer = await post(session, data, headers)
    assert status == 400, answer
    assert answer["error"]["message"]
    assert kept(tmp_path) == []


async def test_no_bytes_make_the_server_fail(
    session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    rng = random.Random(1)
    good, headers = form(
        (FILE[0] + "\r\nContent-Type: text/plain\r\nContent-Length: 3", FILE[1]),
        PURPOSE,
    )
    statuses = set()
    for _ in range(150):
        data = bytearray(good)
        for _ in range(rng.randint(0, 3)):
            place = rng.randrange(len(data))
            data[place : place + rng.randint(0, 4)] = rng.choice(
                (b"", b"\r\n", b"--edge", b"\xff;=")
            )
        statuses.add((await post(session, bytes(data), headers))[0])
    assert {200, 400} <= statuses <= {200, 400, 413}
    async with session.get("/v1/files") as response:
        assert len(kept(tmp_path)) == len((await response.json())["data"])


async def test_a_file_over_the_limit_is_refused(
    session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    head = FILE[0]
    status, _ = await post(session, *form((head, b"x" * MAX_BYTES), PURPOSE))
    assert status == 200
    before = len(kept(tmp_path))
    status, answer = await post(session, *form((head, b"x" * (MAX_BYTES + 1)), PURPOSE))
    assert (status, answer["error"]["code"]) == (413, "request_too_large")
    assert len(kept(tmp_path)) == before == 1


async def test_a_client_that_leaves_in_the_middle_leaves_nothing(
    session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    is_sent = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield form((FILE[0], b"x" * 5000), closed=False)[0][:3000]
        is_sent.set()
        await asyncio.Event().wait()

    async def upload() -> None:
        async with session.post("/v1/files", data=slowly(), headers=form()[1]):
            pass

    task = asyncio.create_task(upload())
    await is_sent.wait()
    await until(lambda: len(kept(tmp_path)) == 1)
    task.cancel()
    await until(lambda: kept(tmp_path) == [])


@pytest.mark.parametrize("name", ["../../etc/passwd", "a\x01b", "a" * 3000])
async def test_a_files_name_is_a_word_and_no_path(
    session: aiohttp.ClientSession, tmp_path: Path, name: str
) -> None:
    head = f'name="file"; filename="{name}"'
    status, answer = await post(session, *form((head, b"{}"), PURPOSE))
    if status == 200:
        assert len(answer["filename"]) <= 255
    assert (status == 200) == (head.isprintable())
    assert [path.name for path in kept(tmp_path)] == [answer.get("id")] * (status == 200)


@pytest.mark.parametrize("name", ["..%2F..%2Fstore.sqlite", "..", "%00", "a" * 5000])
async def test_an_id_is_no_path_either(session: aiohttp.ClientSession, name: str) -> None:
    for path in (f"/v1/files/{name}", f"/v1/files/{name}/content", f"/v1/batches/{name}"):
        async with session.get(path) as response:
            assert response.status in (400, 404)
            assert "error" in await response.json()
