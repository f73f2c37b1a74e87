"""What the order of a batch file is worth: prompt tokens computed in file and in prefix order.

Takes few-shot questions (GSM8K, MMLU, BBH; see `replay.readers.few_shot`), shuffles them, and runs
them twice over a pool that is far smaller than all their prefixes together. Tokens are counted,
not seconds, so by default the default model's tokenizer goes with a small model of random weights.

    python -m benchmarks.batch_order
    python -m benchmarks.batch_order --lines 2000 --blocks 1024 --json out.json
    python -m benchmarks.batch_order --model smollm2-135m-instruct --lines 100
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.machine import describe_machine
from radixserve.batch.dispatch import HttpDispatch, open_session
from radixserve.batch.estimate import common_len
from radixserve.batch.plan import make_order, plan_lines
from radixserve.batch.reader import LineFile
from radixserve.batch.report import BatchReport
from radixserve.batch.runner import RunOptions, run_lines
from radixserve.batch.writer import ResultFile
from radixserve.cli.batch_progress import BatchProgress
from radixserve.config import (
    DEFAULT_MODEL,
    CacheConfig,
    EngineConfig,
    HttpConfig,
    ModelConfig,
    SchedulerConfig,
)
from radixserve.engine.async_engine import AsyncEngine
from radixserve.models.source import resolve_model
from radixserve.replay.readers.few_shot import few_shot_prompts
from radixserve.server.caller import ANYBODY
from radixserve.server.inner_door import open_inner_door
from radixserve.text.tokenizer import Tokenizer
from tests.kit.tiny_model import write_tiny_model

if TYPE_CHECKING:
    from radixserve.batch.plan import OrderName

DEFAULT_DATA = Path(__file__).parents[2] / "shared/data/few_shot"
ORDERS: tuple[OrderName, ...] = ("file", "prefix")
TARGET = 2.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run over all lines."""

    order: str
    prompt_tokens: int
    computed_tokens: int
    hit_rate: float
    wall_s: float


def small_model(folder: Path) -> str:
    """Write a model of random weights that has the default model's tokenizer; return its folder."""
    source = resolve_model(DEFAULT_MODEL)
    vocab_size = json.loads((source / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    write_tiny_model(folder, vocab_size=vocab_size, max_position_embeddings=8192)
    for path in source.glob("*token*"):
        shutil.copy(path, folder)
    return str(folder)


def write_lines(path: Path, data: Path, *, count: int, seed: int) -> list[str]:
    """Write a batch file of shuffled questions; return its prompts."""
    prompts = few_shot_prompts(data)
    random.Random(seed).shuffle(prompts)
    prompts = prompts[:count]
    with path.open("w", encoding="utf-8") as file:
        for number, prompt in enumerate(prompts):
            body = {"prompt": prompt, "max_tokens": 1, "temperature": 0}
            line = {"custom_id": f"{number}", "method": "POST", "url": "/v1/completions"}
            file.write(json.dumps(line | {"body": body}) + "\n")
    return prompts


def distinct_tokens(prompts: list[str], tokenizer: Tokenizer) -> int:
    """Return the tokens of the tree of all prompts: no order computes fewer."""
    ids = sorted(tokenizer.encode(prompt) for prompt in prompts)
    return sum(map(len, ids)) - sum(common_len(one, other) for one, other in pairwise(ids))


async def run_once(
    config: EngineConfig, path: Path, name: OrderName, *, concurrency: int
) -> Outcome:
    """Run the file on an engine of its own."""
    report = BatchReport()
    results = ResultFile(path.with_suffix(f".{name}"))
    engine = AsyncEngine.from_config(config)
    await engine.start()
    with LineFile(path) as source:
        order = make_order(source, name)
        plan_lines(source, order, results, report)
        progress = BatchProgress(report)
        async with open_inner_door(engine, HttpConfig()) as door:
            with door.opened_for(ANYBODY) as headers, progress.shown():
                async with open_session(door.url, headers=headers) as session:
                    started = time.perf_counter()
                    await run_lines(
                        iter(order),
                        HttpDispatch(session),
                        results,
                        report,
                        RunOptions(concurrency=concurrency),
                        on_record=progress.advance,
                    )
                    wall_s = time.perf_counter() - started
        order.close()
    await engine.stop()
    results.close()
    if report.num_failed:
        raise SystemExit(f"{report.num_failed} lines failed: {report.failures}")
    tokens = report.tokens
    return Outcome(name, tokens.prompt, tokens.computed, tokens.hit_rate, wall_s)


async def run(args: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Run both orders and return all the figures."""
    model = args.model or small_model(folder / "model")
    config = EngineConfig(
        model=ModelConfig(model=model),
        cache=CacheConfig(num_blocks=args.blocks),
        scheduler=SchedulerConfig(max_num_seqs=args.concurrency),
        seed=args.seed,
    )
    path = folder / "in.jsonl"
    prompts = write_lines(path, args.data, count=args.lines, seed=args.seed)
    outcomes = [await run_once(config, path, name, concurrency=args.concurrency) for name in ORDERS]
    return {
        "machine": describe_machine(),
        "model": args.model or "random weights, the default model's tokenizer",
        "lines": len(prompts),
        "pool_tokens": args.blocks * config.cache.block_size,
        "concurrency": args.concurrency,
        "seed": args.seed,
        "distinct_tokens": distinct_tokens(prompts, Tokenizer.from_folder(resolve_model(model))),
        "runs": [asdict(outcome) for outcome in outcomes],
        "ratio": outcomes[0].computed_tokens / outcomes[1].computed_tokens,
    }


def print_report(report: dict[str, object]) -> None:
    """Print the figures as text."""
    runs, ratio = report["runs"], report["ratio"]
    assert isinstance(runs, list)
    assert isinstance(ratio, float)
    print(report["machine"])
    print(
        f"{report['lines']} shuffled few-shot prompts, a pool of {report['pool_tokens']:,} tokens, "
        f"{report['concurrency']} at a time, {report['model']}, seed {report['seed']}\n"
    )
    print(f"{'order':8}{'prompt tokens':>15}{'computed':>12}{'cached':>9}{'wall s':>9}")
    for row in runs:
        print(
            f"{row['order']:8}{row['prompt_tokens']:15,}{row['computed_tokens']:12,}"
            f"{row['hit_rate']:9.1%}{row['wall_s']:9.1f}"
        )
    print(f"{'least':8}{'':15}{report['distinct_tokens']:12,}   whatever the pool and the order")
    verdict = "met" if ratio >= TARGET else "MISSED"
    print(f"\nfile order computes {ratio:.2f} times as many; target {TARGET}: {verdict}")


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="as in radixserve serve (default: random weights)")
    parser.add_argument("--lines", type=int, default=600)
    parser.add_argument("--blocks", type=int, default=640, help="the pool, in blocks of 16 tokens")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA, help="folder of few-shot sets")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    return parser.parse_args()


def main() -> None:
    """Run and report."""
    args = parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(run(args, Path(folder)))
    print_report(report)
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
