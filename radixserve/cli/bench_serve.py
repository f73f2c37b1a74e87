"""`radixserve bench serve`: load any server that speaks OpenAI's API, and report."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from typing import TYPE_CHECKING, Any

from radixserve.cli.bench_datasets import DATASETS_HELP, add_dataset_flags, sessions_of
from radixserve.cli.bench_load import add_load_flags, load_settings
from radixserve.cli.bench_progress import LoadProgress
from radixserve.cli.bench_report import add_report_flags, check_report_flags, report

if TYPE_CHECKING:
    from radixserve.bench.run import ServerSettings

KEY_VARIABLES = ("RADIXSERVE_API_KEY", "OPENAI_API_KEY")

EPILOG = f"""\
examples:
  radixserve bench serve --dataset-name w1 --max-concurrency 8
  radixserve bench serve --dataset-name random --random-input-len 512 --request-rate 4
  radixserve bench serve --base-url http://127.0.0.1:8101 --dataset-name multi-turn
  radixserve bench serve --dataset-name w3 --goodput ttft:500 tpot:50 --plot latency.png

{DATASETS_HELP}
The same seed sends the same prompts again, and a server that has cached them answers from its
cache: use another --seed, or --flush-cache. Exit code: 0 all answered, 1 some failed, 2 nothing
could be run.
"""


def add_parser(actions: Any) -> None:
    """Add this action to those of `radixserve bench`."""
    parser = actions.add_parser(
        "serve",
        help="load a server that is running",
        description="Send a load to a server that speaks OpenAI's API, and report.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_server_flags(parser)
    add_dataset_flags(parser)
    add_load_flags(parser)
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of prompts and arrivals (default: 0)"
    )
    add_report_flags(parser)
    parser.set_defaults(run=run)


def _add_server_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server")
    group.add_argument(
        "--base-url",
        default="http://127.0.0.1:8000",
        metavar="URL",
        help="with or without a closing /v1 (default: http://127.0.0.1:8000)",
    )
    group.add_argument("--model", metavar="NAME", help="(default: the first that is listed)")
    group.add_argument(
        "--api-key", metavar="KEY", help=f"(default: {' or '.join(KEY_VARIABLES)} if it is set)"
    )
    group.add_argument(
        "--endpoint",
        choices=("completions", "chat"),
        default="completions",
        help="(default: completions)",
    )
    group.add_argument(
        "--prompt-form",
        choices=("auto", "ids", "text"),
        default="auto",
        help="how completions get their prompts; auto is token ids where the server takes them, "
        "else words (default: auto)",
    )
    group.add_argument(
        "--extra-body",
        type=_json_object,
        default={},
        metavar="JSON",
        help="fields added to every request",
    )
    group.add_argument(
        "--flush-cache",
        action="store_true",
        help="empty the cache first, where the server is a radixserve",
    )
    group.add_argument(
        "--timeout",
        type=float,
        default=900.0,
        metavar="S",
        help="seconds that a request may take (default: 900)",
    )


def run(args: argparse.Namespace) -> int:
    """Load the server and print the table on stdout; progress goes to stderr.

    Raises:
        ConfigError: the server cannot be reached, or a flag cannot be used.
    """
    from radixserve.bench.run import run_against_server
    from radixserve.bench.workload import num_requests

    check_report_flags(args)
    sessions = sessions_of(args, args.seed)
    progress = LoadProgress(num_requests(sessions), is_quiet=args.quiet)
    with progress.shown():
        done = asyncio.run(
            run_against_server(
                sessions,
                _server_settings(args),
                load_settings(args, seed=args.seed),
                on_outcome=progress.advance,
            )
        )
    return report(args, done, title="Serving Benchmark Result")


def _server_settings(args: argparse.Namespace) -> ServerSettings:
    from radixserve.bench.run import ServerSettings

    set_keys = (os.environ.get(name) for name in KEY_VARIABLES)
    return ServerSettings(
        url=args.base_url,
        model=args.model,
        api_key=args.api_key or next(filter(None, set_keys), None),
        endpoint=args.endpoint,
        form=args.prompt_form,
        extra=args.extra_body,
        flushes=args.flush_cache,
        timeout_s=args.timeout,
    )


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("must be a JSON object")
    return value
