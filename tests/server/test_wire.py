"""What is not HTTP gets our envelope, tells nobody what it said, and TLS works by two files."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import ssl
import subprocess
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import aiohttp
import pytest

from radixserve.config import HttpConfig
from radixserve.engine.async_engine import AsyncEngine
from radixserve.errors import ConfigError
from radixserve.server.run import serve
from radixserve.server.wire import tls_context

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from radixserve.config import EngineConfig

SECRET = "sk-in-a-bad-header"
BAD = {
    "no http at all": f"{SECRET}\r\n\r\n",
    "a header without a colon": f"GET /v1/models HTTP/1.1\r\nHost: a\r\n{SECRET}\r\n\r\n",
    "a header with a bad name": f"GET / HTTP/1.1\r\nHost: a\r\nAuth {SECRET}: x\r\n\r\n",
    "a line that is too long": f"GET /{SECRET}{'a' * 70_000} HTTP/1.1\r\nHost: a\r\n\r\n",
    "a bad length": f"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {SECRET}\r\n\r\n",
    "a tls handshake": "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
}


@asynccontextmanager
async def served(engine_config: EngineConfig, http: HttpConfig) -> AsyncIterator[str]:
    """Run `serve` in this process and yield its address."""
    urls: asyncio.Queue[str] = asyncio.Queue()
    engine = AsyncEngine.from_config(engine_config)
    task = asyncio.create_task(serve(engine, http, on_ready=urls.put_nowait))
    try:
        yield await urls.get()
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def say(url: str, text: str) -> bytes:
    host, port = url.split("//")[1].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(text.encode("latin-1"))
    answer = await asyncio.wait_for(reader.read(), timeout=30)
    writer.close()
    await writer.wait_closed()
    return answer


async def test_what_is_not_http_gets_the_envelope_and_is_repeated_nowhere(
    engine_config: EngineConfig, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        async with served(engine_config, HttpConfig(port=0)) as url:
            answers = {what: await say(url, text) for what, text in BAD.items()}
            async with aiohttp.ClientSession() as session:
                assert (await session.get(f"{url}/health")).status == 200
    for what, answer in answers.items():
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.split()[1] == b"400", (what, head)
        assert b"application/json" in head
        assert b"X-Request-Id: req-" in head
        assert json.loads(body)["error"]["code"] == "invalid_http"
        assert SECRET.encode() not in answer
    assert SECRET not in caplog.text
    assert all(record.exc_info is None for record in caplog.records)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a certificate for 127.0.0.1 that signs itself, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-out", str(cert), "-keyout", str(key)]
    subprocess.run([*command, *names, *files], check=True, capture_output=True)
    return cert, key


async def test_with_a_certificate_the_server_speaks_https(
    engine_config: EngineConfig, certificate: tuple[Path, Path]
) -> None:
    cert, key = certificate
    http = HttpConfig(port=0, tls_cert=str(cert), tls_key=str(key))
    trusted = ssl.create_default_context(cafile=str(cert))
    async with served(engine_config, http) as url, aiohttp.ClientSession() as session:
        assert url.startswith("https://127.0.0.1:")
        body = {"prompt": "Once", "max_tokens": 3, "stream": True}
        response = await session.post(f"{url}/v1/completions", json=body, ssl=trusted)
        assert (await response.text()).endswith("data: [DONE]\n\n")


def test_files_that_are_no_certificate_are_one_clear_sentence(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    other = tmp_path / "other.pem"
    other.write_text("nothing")
    for cert, key in ((other, certificate[1]), (tmp_path / "absent", certificate[1])):
        with pytest.raises(ConfigError, match=r"tls_cert .* cannot be used"):
            tls_context(HttpConfig(tls_cert=str(cert), tls_key=str(key)))
