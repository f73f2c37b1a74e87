"""How long `/health` takes while long prompts are computed: a real server, a client of its own.

Beside it, a process that does nothing else answers the same question: what it takes is the
machine's own delay, which no server can go below.

python -m benchmarks.health
python -m benchmarks.health --prompts 32 --prompt-tokens 1500 --model ./my-model
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp
from aiohttp import web

from benchmarks.machine import describe_machine
from benchmarks.server_process import running_server
from benchmarks.summary import percentile

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

TARGET_P99_S = 0.020
EVERY_S = 0.01
WORDS = ("tree", "leaf", "root", "node", "block", "prefix", "token", "cache", "river", "stone")


def make_prompt(rng: random.Random, num_words: int) -> str:
    """Return a text that shares its beginning with no other; a word is about one token."""
    return " ".join(rng.choice(WORDS) for _ in range(num_words))


async def ask(session: aiohttp.ClientSession, prompt: str) -> int:
    """Send one prompt and return how many tokens it had."""
    body = {"prompt": prompt, "max_tokens": 1}
    async with session.post("/v1/completions", json=body) as response:
        answer = await response.json()
        assert response.status == 200, answer
        return int(answer["usage"]["prompt_tokens"])


@asynccontextmanager
async def idle_process() -> AsyncIterator[str]:
    """Run a server that only answers `/health`, and yield its address."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.health", "--idle"), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.terminate()
        await process.wait()


async def serve_idle() -> None:
    """Answer `/health` until the process is ended."""

    async def get_health(request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    app = web.Application()
    app.router.add_get("/health", get_health)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


async def watch(session: aiohttp.ClientSession, until: asyncio.Event) -> list[float]:
    """Return the seconds of each `/health`, asked every few milliseconds until an event."""
    seconds = []
    while not until.is_set():
        begin = time.perf_counter()
        async with session.get("/health") as response:
            assert response.status == 200
            await response.read()
        seconds.append(time.perf_counter() - begin)
        await asyncio.sleep(EVERY_S)
    return seconds


@dataclass(frozen=True, slots=True)
class Watched:
    """Seconds of each `/health`."""

    at_rest: list[float]
    under_load: list[float]
    of_idle_process: list[float]
    """While the server was under load."""
    prompt_tokens: int
    wall_s: float


async def measure(arguments: argparse.Namespace) -> Watched:
    """Ask `/health` at rest, then while the prompts are computed."""
    rng = random.Random(arguments.seed)
    prompts = [make_prompt(rng, arguments.prompt_tokens) for _ in range(arguments.prompts)]
    async with (
        running_server(["--model", arguments.model, *arguments.flags]) as url,
        idle_process() as idle_url,
        aiohttp.ClientSession(base_url=url, connector=aiohttp.TCPConnector(limit=0)) as session,
        aiohttp.ClientSession(base_url=idle_url) as idle_session,
    ):
        rest_is_over, load_is_over = asyncio.Event(), asyncio.Event()
        asyncio.get_running_loop().call_later(arguments.rest_s, rest_is_over.set)
        at_rest = await watch(session, rest_is_over)
        watching = asyncio.gather(watch(session, load_is_over), watch(idle_session, load_is_over))
        begin = time.perf_counter()
        tokens = sum(await asyncio.gather(*(ask(session, prompt) for prompt in prompts)))
        wall_s = time.perf_counter() - begin
        load_is_over.set()
        under_load, of_idle_process = await watching
    return Watched(at_rest, under_load, of_idle_process, tokens, wall_s)


def tell(label: str, seconds: list[float]) -> None:
    """Print one line of milliseconds."""
    marks = [1000 * percentile(seconds, percent) for percent in (50, 99, 100)]
    shown = " / ".join(f"{mark:.1f}" for mark in marks)
    print(f"{label:>22}  p50 / p99 / max  {shown} ms  of {len(seconds)} calls")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--prompt-tokens", type=int, default=1000)
    parser.add_argument("--rest-s", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--idle", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("flags", nargs="*", help="more flags of the server, after --")
    arguments = parser.parse_args(argv)
    if arguments.idle:
        asyncio.run(serve_idle())
        return 0
    watched = asyncio.run(measure(arguments))
    print(describe_machine())
    print(f"{arguments.prompts} prompts, {watched.prompt_tokens:,} tokens, {watched.wall_s:.1f} s")
    tell("at rest", watched.at_rest)
    tell("under load", watched.under_load)
    tell("idle process meanwhile", watched.of_idle_process)
    return 0 if percentile(watched.under_load, 99) < TARGET_P99_S else 1


if __name__ == "__main__":
    raise SystemExit(main())
