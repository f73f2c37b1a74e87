"""Listens, serves until told to stop, and lets running answers finish.

SIGTERM or SIGINT   new requests get 503 and /ready goes red; running ones finish
after the grace     each open stream gets an error event and its end
second signal       the grace is over at once
"""

from __future__ import annotations

import asyncio
import errno
import resource
import signal
import socket
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import web

from radixserve.engine.load_log import log_load
from radixserve.errors import ConfigError
from radixserve.server.app import build_app
from radixserve.server.keys import load_keys
from radixserve.server.store.data_folder import DataFolder
from radixserve.server.tracing import make_tracer
from radixserve.server.wire import Connection, tls_context

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from radixserve.config import HttpConfig
    from radixserve.engine.async_engine import AsyncEngine

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
BACKLOG = 4096
"""Connections that may wait to be accepted: a burst is answered with 429, never with a reset."""
LAST_WORDS_S = 2.0
"""How long connections may take to send what is left to say, once the engine has stopped."""


async def serve(
    engine: AsyncEngine,
    config: HttpConfig,
    *,
    on_ready: Callable[[str], None],
    listener: socket.socket | None = None,
) -> None:
    """Start the engine and serve it until a signal; returns after an orderly end.

    Args:
        engine: Not yet started; it is stopped when this returns.
        on_ready: Called once with the address, when requests are taken.
        listener: From `bind_socket`, when the address was reserved before; closed at the end.
    Raises:
        ConfigError: the address cannot be used.
    """
    raise_open_file_limit()
    with listener or bind_socket(config.host, config.port) as listener:
        await engine.start()
        try:
            async with _listening(engine, config, listener):
                with _signals() as signals:
                    on_ready(_url(config, listener))
                    await signals.get()
                    await _drain(engine, signals, grace_s=config.shutdown_grace_s)
        finally:
            await engine.stop()


@asynccontextmanager
async def _listening(
    engine: AsyncEngine, config: HttpConfig, listener: socket.socket
) -> AsyncIterator[None]:
    """Accept connections inside the `async with`.

    `handler_cancellation` makes a client that goes away cancel its handler, even while its
    request waits in the queue and nothing is written.
    """
    endpoint = config.observe.otlp_endpoint
    tracer = make_tracer(endpoint, model_name=engine.info.name) if endpoint else None
    runner = web.AppRunner(
        build_app(engine, config, tracer=tracer),
        handle_signals=False,
        handler_cancellation=True,
        shutdown_timeout=LAST_WORDS_S,
    )
    await runner.setup()
    try:
        async with _accepting(runner, config, listener), _logging_load(engine, config):
            yield
    finally:
        await runner.cleanup()
        if tracer is not None:
            await asyncio.to_thread(tracer.close)


@asynccontextmanager
async def _accepting(
    runner: web.AppRunner, config: HttpConfig, listener: socket.socket
) -> AsyncIterator[None]:
    """Turn connections into `Connection`s, which aiohttp's own sites would not."""
    loop = asyncio.get_running_loop()
    server = runner.server
    assert server is not None
    accepting = await loop.create_server(
        lambda: Connection(server, loop=loop),
        sock=listener,
        backlog=BACKLOG,
        ssl=tls_context(config),
    )
    try:
        yield
    finally:
        accepting.close()


@asynccontextmanager
async def _logging_load(engine: AsyncEngine, config: HttpConfig) -> AsyncIterator[None]:
    observe = config.observe
    if observe.log_interval_s == 0:
        yield
        return
    task = asyncio.create_task(
        log_load(engine.core, interval_s=observe.log_interval_s, step_times=observe.log_step_times)
    )
    try:
        yield
    finally:
        task.cancel()


@contextmanager
def _signals() -> Iterator[asyncio.Queue[signal.Signals]]:
    """Collect the signals to stop in a queue, instead of dying of them."""
    loop = asyncio.get_running_loop()
    received: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, received.put_nowait, number)
    try:
        yield received
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)


async def _drain(
    engine: AsyncEngine, signals: asyncio.Queue[signal.Signals], *, grace_s: float
) -> None:
    """Stop the engine, within the grace or at the next signal, whichever is first."""
    stopping = asyncio.create_task(engine.stop(grace_s=grace_s))
    hurry = asyncio.create_task(signals.get())
    await asyncio.wait({stopping, hurry}, return_when=asyncio.FIRST_COMPLETED)
    hurry.cancel()
    if not stopping.done():
        stopping.cancel()
        await asyncio.wait({stopping})
        await engine.stop()
        return
    await stopping


def check_settings(config: HttpConfig) -> None:
    """Read the files that the settings name, before seconds of loading a model.

    Raises:
        ConfigError: keys, certificate, the data folder or the trace exporter cannot be used.
    """
    load_keys(config.keys)
    tls_context(config)
    if config.data_dir is not None:
        DataFolder(Path(config.data_dir)).close()
    if config.observe.otlp_endpoint is not None:
        make_tracer(config.observe.otlp_endpoint, model_name="").close()


def bind_socket(host: str, port: int) -> socket.socket:
    """Reserve an address. Nobody can connect to it before `serve` listens on it.

    Raises:
        ConfigError: the address is in use, not allowed or unknown.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as failed:
        raise ConfigError(f"host {host!r} cannot be used: {failed}.") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as failed:
        listener.close()
        raise ConfigError(_bind_message(host, port, failed)) from None
    return listener


def _bind_message(host: str, port: int, failed: OSError) -> str:
    if failed.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use; choose another one with --port."
    return f"port {port} on {host} cannot be opened: {failed.strerror}."


def _url(config: HttpConfig, listener: socket.socket) -> str:
    host = f"[{config.host}]" if ":" in config.host else config.host
    scheme = "http" if config.tls_cert is None else "https"
    return f"{scheme}://{host}:{listener.getsockname()[1]}"


def raise_open_file_limit() -> None:
    """Allow as many open connections as the system lets this process have.

    Mutates: the process's soft limit of open files.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
