"""Few-shot workload against the real server: many questions behind one shared prefix.

Starts `radixserve serve` twice, with the prefix cache and without it, sends both the same
requests over HTTP, and prints wall time, time to first token and cached tokens side by side.

    python -m benchmarks.few_shot
    python -m benchmarks.few_shot --requests 16 --concurrency 8 --json out.json

The questions are GSM8K's where its file is found (--data), else sums made from the seed.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import random
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
from rich.console import Console
from rich.progress import track

from benchmarks.machine import describe_machine
from benchmarks.server_process import running_server
from benchmarks.summary import percentile
from radixserve.models.source import resolve_model
from radixserve.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_DATA = Path(__file__).parents[2] / "shared/data/few_shot/gsm8k.jsonl.gz"
TARGET_CACHED_SHARE = 0.97
TARGET_SPEEDUP = 3.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request gave."""

    text: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    ttft_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """One server's run over all requests; times in seconds."""

    label: str
    wall_s: float
    ttft_median_s: float
    ttft_p99_s: float
    latency_median_s: float
    latency_p99_s: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    output_tokens_per_s: float


def load_examples(path: Path, rng: random.Random) -> list[tuple[str, str]]:
    """Return (question, answer) pairs, from the file if it is there."""
    if not path.exists():
        print(f"{path} is not there: sums are made instead", file=sys.stderr)
        return [_sum_example(rng) for _ in range(400)]
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    pairs = [(row["question"], row["answer"]) for row in rows]
    rng.shuffle(pairs)
    return pairs


def _sum_example(rng: random.Random) -> tuple[str, str]:
    a, b = rng.randrange(1000), rng.randrange(1000)
    return f"A shop had {a} pears and bought {b} more. How many has it?", f"{a}+{b}={a + b}"


def build_prompts(
    tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]], *, prefix_len: int, count: int
) -> list[list[int]]:
    """Return prompts as token ids: a prefix of exactly `prefix_len` tokens, then a question."""
    prefix: list[int] = []
    used = 0
    while len(prefix) < prefix_len:
        question, answer = pairs[used]
        prefix += tokenizer.encode(f"Question: {question}\nAnswer: {answer}\n\n")
        used += 1
    questions = [question for question, _ in pairs[used : used + count]]
    return [
        prefix[:prefix_len] + tokenizer.encode(f"\n\nQuestion: {question}\nAnswer:")
        for question in questions
    ]


def shared_len(prompts: Sequence[Sequence[int]]) -> int:
    """Return how many leading tokens all prompts have in common."""
    columns = zip(*prompts, strict=False)
    return next(i for i, column in enumerate(columns) if len(set(column)) > 1)


async def ask(session: aiohttp.ClientSession, prompt: Sequence[int], max_tokens: int) -> Answer:
    """Send one streaming completion and read it to the end."""
    body = {
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started = time.perf_counter()
    first: float | None = None
    text = ""
    usage: dict[str, Any] = {}
    async with session.post("/v1/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.content:
            data = line.removeprefix(b"data:").strip()
            if not line.startswith(b"data:") or data == b"[DONE]":
                continue  # a blank line, a comment that keeps the connection open, the end
            event = json.loads(data)
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                if choice["text"] and first is None:
                    first = time.perf_counter()
                text += choice["text"]
    ended = time.perf_counter()
    return Answer(
        text,
        usage["prompt_tokens"],
        usage["prompt_tokens_details"]["cached_tokens"],
        usage["completion_tokens"],
        (first or ended) - started,
        ended - started,
    )


async def ask_all(
    url: str, prompts: Sequence[Sequence[int]], *, max_tokens: int, concurrency: int, label: str
) -> tuple[float, list[Answer]]:
    """Return the wall time and the answers, in the prompts' order."""
    seats = asyncio.Semaphore(concurrency)
    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, timeout=timeout, connector=connector) as session:

        async def one(prompt: Sequence[int]) -> Answer:
            async with seats:
                return await ask(session, prompt, max_tokens)

        await ask(session, [100, 200, 300], 4)  # the first request pays for lazy initialisation
        started = time.perf_counter()
        tasks = [asyncio.create_task(one(prompt)) for prompt in prompts]
        for task in track(tasks, description=label, console=Console(stderr=True)):
            await task
        wall_s = time.perf_counter() - started
    return wall_s, [task.result() for task in tasks]


def summarise(label: str, wall_s: float, answers: Sequence[Answer]) -> Outcome:
    """Return the figures of one run."""
    ttft = [answer.ttft_s for answer in answers]
    latency = [answer.latency_s for answer in answers]
    output_tokens = sum(answer.completion_tokens for answer in answers)
    return Outcome(
        label=label,
        wall_s=wall_s,
        ttft_median_s=percentile(ttft, 50),
        ttft_p99_s=percentile(ttft, 99),
        latency_median_s=percentile(latency, 50),
        latency_p99_s=percentile(latency, 99),
        prompt_tokens=sum(answer.prompt_tokens for answer in answers),
        cached_tokens=sum(answer.cached_tokens for answer in answers),
        output_tokens=output_tokens,
        output_tokens_per_s=output_tokens / wall_s,
    )


async def run(args: argparse.Namespace) -> dict[str, object]:
    """Run both servers over the same prompts and return all the figures."""
    rng = random.Random(args.seed)
    tokenizer = Tokenizer.from_folder(resolve_model(args.model))
    pairs = load_examples(args.data, rng)
    prompts = build_prompts(tokenizer, pairs, prefix_len=args.prefix_len, count=args.requests)
    outcomes, texts = [], []
    for label, flags in (("cache", []), ("no cache", ["--no-prefix-cache"])):
        flags = [*flags, "--model", args.model, "--dtype", args.dtype, *args.server_flags]
        async with running_server(flags) as url:
            wall_s, answers = await ask_all(
                url,
                prompts,
                max_tokens=args.max_tokens,
                concurrency=args.concurrency,
                label=label,
            )
        outcomes.append(summarise(label, wall_s, answers))
        texts.append([answer.text for answer in answers])
    possible = shared_len(prompts) * (len(prompts) - 1)
    same = sum(a == b for a, b in zip(*texts, strict=True))
    return {
        "machine": describe_machine(),
        "seed": args.seed,
        "requests": args.requests,
        "concurrency": args.concurrency,
        "prefix_len": args.prefix_len,
        "max_tokens": args.max_tokens,
        "runs": [asdict(outcome) for outcome in outcomes],
        "cached_share": outcomes[0].cached_tokens / possible,
        "speedup": outcomes[1].wall_s / outcomes[0].wall_s,
        "same_texts": same,
    }


def print_report(report: dict[str, object]) -> None:
    """Print the figures as text."""
    print(report["machine"])
    print(
        f"{report['requests']} requests, {report['concurrency']} at a time, "
        f"{report['prefix_len']} shared tokens, {report['max_tokens']} output tokens, "
        f"seed {report['seed']}\n"
    )
    print(f"{'':10}{'wall s':>9}{'ttft med/p99 s':>18}{'latency med/p99 s':>20}{'out tok/s':>11}")
    runs = report["runs"]
    assert isinstance(runs, list)
    for row in runs:
        print(
            f"{row['label']:10}{row['wall_s']:9.2f}"
            f"{row['ttft_median_s']:10.2f} /{row['ttft_p99_s']:6.2f}"
            f"{row['latency_median_s']:12.2f} /{row['latency_p99_s']:6.2f}"
            f"{row['output_tokens_per_s']:11.1f}"
        )
    _print_target("cached tokens / possible", report["cached_share"], TARGET_CACHED_SHARE)
    _print_target("speed-up of the wall time", report["speedup"], TARGET_SPEEDUP)
    print(f"{'equal texts':28}{report['same_texts']} of {report['requests']}")


def _print_target(name: str, value: object, target: float) -> None:
    assert isinstance(value, float)
    print(f"{name:28}{value:.3f}  target {target}: {'met' if value >= target else 'MISSED'}")


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m-instruct", help="as in radixserve serve")
    parser.add_argument("--dtype", default="auto", help="as in radixserve serve")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--prefix-len", type=int, default=1000, help="shared tokens")
    parser.add_argument("--max-tokens", type=int, default=32, help="output tokens a request")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA, help="gsm8k.jsonl.gz")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("server_flags", nargs="*", help="after --: more flags for both servers")
    return parser.parse_args()


def main() -> None:
    """Run and report."""
    args = parse_args()
    report = asyncio.run(run(args))
    print_report(report)
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
