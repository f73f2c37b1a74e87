"""`radixserve bench throughput`: load an engine in this process, without HTTP, and report."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING, Any

from radixserve.cli.bench_datasets import DATASETS_HELP, add_dataset_flags, sessions_of
from radixserve.cli.bench_load import add_load_flags, load_settings
from radixserve.cli.bench_progress import LoadProgress
from radixserve.cli.bench_report import add_report_flags, check_report_flags, report
from radixserve.cli.flags import ENGINE_GROUPS, add_setting_flags, config_from_args
from radixserve.cli.progress import RichProgress

if TYPE_CHECKING:
    from radixserve.bench.run import Run
    from radixserve.bench.workload import Session
    from radixserve.engine.async_engine import AsyncEngine

EPILOG = f"""\
examples:
  radixserve bench throughput --dataset-name w1
  radixserve bench throughput --dataset-name w3 --no-prefix-cache
  radixserve bench throughput --num-prompts 16 --random-input-len 256 --max-num-seqs 8

{DATASETS_HELP}
Prompts go in as token ids, all at once unless --max-concurrency or --request-rate says otherwise.
--seed is that of the prompts as well as the engine's.
"""


def add_parser(actions: Any) -> None:
    """Add this action to those of `radixserve bench`."""
    parser = actions.add_parser(
        "throughput",
        help="load an engine in this process",
        description="Send a load to an engine in this process, without HTTP, and report.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_dataset_flags(parser)
    add_load_flags(parser)
    add_report_flags(parser)
    add_setting_flags(parser, ENGINE_GROUPS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Load the engine and print the table on stdout; progress goes to stderr.

    Raises:
        ConfigError: a setting, the model or a flag cannot be used.
    """
    config = config_from_args(args, ENGINE_GROUPS).engine
    check_report_flags(args)
    sessions = sessions_of(args, args.seed or 0)
    from radixserve.engine.async_engine import AsyncEngine

    engine = AsyncEngine.from_config(config, progress=RichProgress())
    if args.max_concurrency is None:
        args.max_concurrency = config.scheduler.max_queue_len
    done = asyncio.run(_load(args, engine, sessions))
    return report(args, done, title="Throughput Benchmark Result")


async def _load(args: argparse.Namespace, engine: AsyncEngine, sessions: list[Session]) -> Run:
    from radixserve.bench.run import run_against_engine
    from radixserve.bench.wording import DEFAULT_ID_RANGE
    from radixserve.bench.workload import num_requests

    low, high = DEFAULT_ID_RANGE
    vocab_size = engine.info.vocab_size
    id_range = (min(low, vocab_size // 2), min(high, vocab_size))
    settings = load_settings(args, seed=args.seed or 0, id_range=id_range)
    progress = LoadProgress(num_requests(sessions), is_quiet=args.quiet)
    await engine.start()
    try:
        with progress.shown():
            return await run_against_engine(sessions, engine, settings, on_outcome=progress.advance)
    finally:
        await engine.stop()
