"""`radixserve replay`: what would a cache of that size do for that load? Needs no model."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radixserve.cli.output_files import require_folders
from radixserve.cli.progress import RichProgress
from radixserve.config import SchedulerConfig
from radixserve.errors import ConfigError

if TYPE_CHECKING:
    from radixserve.replay.report import Report
    from radixserve.replay.simulation import ServeSettings
    from radixserve.replay.study import StudySettings
    from radixserve.replay.trace import Trace

EPILOG = """\
modes:
  cache   one request after the other: the hit rate of tree, pool and eviction policy
  serve   the whole scheduler in simulated seconds: waits, time to first token, preemptions

examples:
  radixserve replay conversation_trace.jsonl.gz --blocks 1% 5% 20% --policy lru
  radixserve replay trace.jsonl --blocks 2000 8000 --plot hits.png --json hits.json
  radixserve replay trace.jsonl --blocks 8000 --mode serve --order fcfs
  radixserve replay batch.jsonl --blocks 512 --order sweep

formats, found by the first line: Mooncake (hash_ids), coding-agent sessions (runs), agent logs
(ref, keep, add), dialogues (messages), Azure's CSV, OpenAI batch files; plain or gzip. A folder
is a few-shot batch (bbh, gsm8k, mmlu).
"""


def add_parser(commands: Any) -> None:
    """Add this command to the sub-parsers of the command line."""
    parser = commands.add_parser(
        "replay",
        help="replay a trace without a model, to find out how large the cache must be",
        description="Replay a request trace through the cache, or the whole scheduler, without a "
        "model.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_study_flags(parser)
    _add_trace_flags(parser)
    _add_serve_flags(parser)
    parser.set_defaults(run=run)


def _add_study_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "trace",
        nargs="+",
        type=Path,
        metavar="TRACE",
        help="a trace; several files of text sessions are laid over one another",
    )
    parser.add_argument(
        "--blocks",
        nargs="+",
        required=True,
        metavar="N",
        help="capacities: blocks, or a share of the distinct ones such as 5%%",
    )
    parser.add_argument(
        "--policy",
        nargs="+",
        default=["lru"],
        metavar="P",
        help="eviction policies, or 'all' (default: lru)",
    )
    parser.add_argument(
        "--mode", choices=("cache", "serve"), default="cache", help="see below (default: cache)"
    )
    parser.add_argument(
        "--order",
        metavar="NAME",
        help="queue policy, or 'arrival' (default: arrival in mode cache, "
        f"{SchedulerConfig().schedule_policy} in mode serve)",
    )
    parser.add_argument(
        "--waiting",
        type=_positive,
        metavar="N",
        help="requests that wait at once in mode cache with an order (default: all of a batch, "
        "else 64)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything as JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw hit rate over capacity")
    parser.add_argument(
        "--kv-bytes-per-token",
        type=_positive,
        metavar="N",
        help="show capacities in GiB as well (128 KiB is 131072)",
    )


def _add_trace_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("reading the trace")
    group.add_argument(
        "--block-size", type=_positive, metavar="N", help="tokens a block (default: the trace's)"
    )
    group.add_argument(
        "--span-s",
        type=_positive_float,
        metavar="S",
        help="seconds over which recorded sessions start (default: 3600, coding sessions 28800)",
    )
    group.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of all that is drawn (default: 0)"
    )


def _add_serve_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("mode serve", "The defaults are an 8B model on one big GPU.")
    group.add_argument(
        "--arrivals",
        choices=("recorded", "batch", "sessions"),
        default="recorded",
        help="at their times, all at once, or each after the answer before it (default: recorded)",
    )
    numbers: tuple[tuple[str, Any, float, str], ...] = (
        ("speed", _positive_float, 1.0, "recorded seconds in one simulated second"),
        ("max-num-seqs", _positive, 64, "most requests running at once"),
        ("max-num-batched-tokens", _positive, 8192, "most tokens computed in one step"),
        ("prefill-tokens-per-s", _positive_float, 25_000.0, "prompt tokens computed in a second"),
        ("decode-step-ms", _positive_float, 8.0, "one step of decoding, without reading KV"),
        ("kv-ns-per-token", _positive_float, 43.0, "reading the KV of one token"),
    )
    for name, parse, default, text in numbers:
        group.add_argument(
            f"--{name}",
            type=parse,
            default=default,
            metavar="N" if parse is _positive else "X",
            help=f"{text} (default: {default:g})",
        )
    group.add_argument(
        "--scale",
        type=_positive,
        metavar="N",
        help="real tokens that one simulated token stands for (default: by the trace, 1 to 16)",
    )


def run(args: argparse.Namespace) -> int:
    """Replay and print the table on stdout; progress goes to stderr.

    Raises:
        ConfigError: a file or a flag cannot be used.
    """
    from radixserve.replay.plot import draw_report, require_matplotlib
    from radixserve.replay.study import run_study
    from radixserve.replay.table import format_report

    if args.plot is not None:
        require_matplotlib()
    require_folders(args.json, args.plot)
    progress = RichProgress()
    report = run_study(_read(args, progress), _settings(args), progress)
    print(format_report(report))
    if args.json is not None:
        _write_json(report, args.json)
    if args.plot is not None:
        draw_report(report, args.plot)
    return 0


def _read(args: argparse.Namespace, progress: RichProgress) -> Trace:
    from radixserve.replay.readers.detect import read_trace

    progress.start("reading", None)
    trace = read_trace(args.trace, span_s=args.span_s, seed=args.seed)
    progress.finish()
    return trace if args.block_size is None else trace.with_block_size(args.block_size)


def _settings(args: argparse.Namespace) -> StudySettings:
    from radixserve.replay.replay_order import ARRIVAL
    from radixserve.replay.study import StudySettings

    return StudySettings(
        blocks=tuple(args.blocks),
        policies=tuple(args.policy),
        mode=args.mode,
        order=args.order or ARRIVAL,
        window=args.waiting,
        serve=_serve_settings(args),
        kv_bytes_per_token=args.kv_bytes_per_token,
    )


def _serve_settings(args: argparse.Namespace) -> ServeSettings:
    from radixserve.replay.arrivals import ArrivalMode
    from radixserve.replay.cost_model import CostModel
    from radixserve.replay.simulation import ServeSettings

    order = args.order or SchedulerConfig().schedule_policy
    return ServeSettings(
        order="fcfs" if order == "arrival" else order,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        arrivals=ArrivalMode(args.arrivals),
        speed=args.speed,
        scale=args.scale,
        cost_model=CostModel(
            prefill_token_s=1 / args.prefill_tokens_per_s,
            decode_step_s=args.decode_step_ms / 1e3,
            kv_token_s=args.kv_ns_per_token / 1e9,
        ),
    )


def _write_json(report: Report, path: Path) -> None:
    try:
        path.write_text(json.dumps(report.to_json(), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _positive_float(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("must be above 0")
    return value
