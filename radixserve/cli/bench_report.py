"""The flags of a report, and the report: a table, a file of JSON, a picture."""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radixserve.cli.output_files import require_folders
from radixserve.errors import ConfigError

if TYPE_CHECKING:
    import argparse

    from radixserve.bench.run import Run
    from radixserve.bench.summary import Metric, Summary

EXIT_SOME_FAILED = 1


def add_report_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say what is reported, and where."""
    group = parser.add_argument_group("report")
    group.add_argument(
        "--percentile-metrics",
        default="ttft,tpot,itl,e2el",
        metavar="NAMES",
        help="latencies that are shown (default: ttft,tpot,itl,e2el)",
    )
    group.add_argument(
        "--metric-percentiles",
        default="99",
        metavar="P,P",
        help="percentiles beside mean and median (default: 99)",
    )
    group.add_argument(
        "--goodput",
        nargs="+",
        default=[],
        metavar="NAME:MS",
        help="limits that a good request keeps, as in ttft:500 tpot:50 e2el:5000",
    )
    group.add_argument(
        "--save-result", type=Path, metavar="FILE.json", help="write the numbers as JSON"
    )
    group.add_argument(
        "--save-detailed", action="store_true", help="and with them those of every request"
    )
    group.add_argument(
        "--plot", type=Path, metavar="FILE.png", help="draw how the latencies are distributed"
    )


def check_report_flags(args: argparse.Namespace) -> None:
    """Complain before the work of minutes, not after it.

    Raises:
        ConfigError: a flag is not understood, or a file could not be written.
    """
    from radixserve.bench.goodput import parse_limits
    from radixserve.bench.plot import require_matplotlib

    _metrics(args)
    _percents(args)
    parse_limits(args.goodput)
    if args.plot is not None:
        require_matplotlib()
    require_folders(args.save_result, args.plot)


def report(args: argparse.Namespace, run: Run, *, title: str) -> int:
    """Print the table, write the files; return 0, or 1 if a request has failed."""
    from radixserve.bench.goodput import parse_limits
    from radixserve.bench.plot import draw_latencies
    from radixserve.bench.summary import summarise
    from radixserve.bench.table import format_table

    summary = summarise(
        run.load,
        percents=_percents(args),
        limits_ms=parse_limits(args.goodput),
        counted=run.counted,
    )
    for note in run.notes:
        print(note, file=sys.stderr)
    print(format_table(summary, title=title, facts=_facts(args, run), metrics=_metrics(args)))
    if args.save_result is not None:
        _save(args, run, summary)
    if args.plot is not None:
        name = f"{run.model}, {args.dataset_name}, {_concurrency(args)} at once"
        draw_latencies(run.load.outcomes, name, args.plot)
    return EXIT_SOME_FAILED if summary.num_ok < summary.num_planned else 0


def _facts(args: argparse.Namespace, run: Run) -> list[tuple[str, str]]:
    return [
        ("Model:", run.model),
        ("Dataset, prompts as:", f"{args.dataset_name}, {run.form.value}"),
        ("Request rate (req/s):", f"{args.request_rate:g}"),
        ("Maximum request concurrency:", _concurrency(args)),
    ]


def _concurrency(args: argparse.Namespace) -> str:
    return "no limit" if args.max_concurrency is None else str(args.max_concurrency)


def _save(args: argparse.Namespace, run: Run, summary: Summary) -> None:
    from radixserve.bench.result_file import details_json, result_json

    settings: dict[str, Any] = {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "model_id": run.model,
        "dataset_name": args.dataset_name,
        "prompt_form": run.form.value,
        "num_prompts": summary.num_planned,
        "request_rate": "inf" if math.isinf(args.request_rate) else args.request_rate,
        "max_concurrency": args.max_concurrency,
        "seed": args.seed,
    }
    found = result_json(summary, settings)
    if args.save_detailed:
        found |= details_json(run.load.outcomes)
    try:
        args.save_result.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {args.save_result}: {error.strerror}") from error


def _metrics(args: argparse.Namespace) -> list[Metric]:
    from radixserve.bench.summary import Metric

    try:
        return [Metric(name.strip()) for name in args.percentile_metrics.split(",")]
    except ValueError as error:
        known = ",".join(metric.value for metric in Metric)
        raise ConfigError(f"--percentile-metrics: {error}; known are {known}") from error


def _percents(args: argparse.Namespace) -> list[float]:
    try:
        percents = [float(text) for text in args.metric_percentiles.split(",")]
    except ValueError as error:
        raise ConfigError(f"--metric-percentiles: {error}") from error
    if not all(0 <= percent <= 100 for percent in percents):
        raise ConfigError("--metric-percentiles are from 0 to 100")
    return percents
