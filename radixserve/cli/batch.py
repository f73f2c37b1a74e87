"""`radixserve batch run`: a file of requests in, a file of results out."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radixserve.cli.batch_progress import BatchProgress
from radixserve.cli.flags import ENGINE_GROUPS, add_setting_flags, config_from_args
from radixserve.cli.progress import RichProgress
from radixserve.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from radixserve.batch.dispatch import Dispatch
    from radixserve.batch.order import LineOrder
    from radixserve.batch.reader import LineFile
    from radixserve.batch.report import BatchReport
    from radixserve.batch.runner import RunOptions
    from radixserve.batch.writer import ResultFile
    from radixserve.config import ServerConfig

EXIT_SOME_FAILED = 1
REMOTE_CONCURRENCY = 64
KEY_VARIABLE = "RADIXSERVE_API_KEY"

EPILOG = """\
examples:
  radixserve batch run questions.jsonl -o answers.jsonl
  radixserve batch run questions.jsonl -o answers.jsonl --url http://127.0.0.1:8000
  radixserve batch run questions.jsonl --dry-run

a line of the input:
  {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Once"}}

urls: /v1/completions, /v1/chat/completions, /v1/responses, /v1/messages. A line of the output has
the custom_id, the response, or an error. A run that was broken off goes on where it was: give the
same command again. Exit code: 0 all done, 1 some failed or are left, 2 nothing could be run.
"""


def add_parser(commands: Any) -> None:
    """Add this command to the sub-parsers of the command line."""
    parser = commands.add_parser(
        "batch",
        help="run a file of requests",
        description="Run files of requests in OpenAI's batch format.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    run_parser = actions.add_parser(
        "run",
        help="run a file, or what of it is left",
        description="Run a file of requests, in an order that reuses what their prompts share.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_file_flags(run_parser)
    _add_run_flags(run_parser)
    add_setting_flags(run_parser, ENGINE_GROUPS)
    run_parser.set_defaults(run=run)


def _add_file_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", type=Path, metavar="INPUT.jsonl", help="requests, one a line")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="OUTPUT.jsonl",
        help="results are appended to it; what it has is not run again",
    )
    parser.add_argument(
        "--ordered",
        action="store_true",
        help="in the end, put the results in the order of the input",
    )
    parser.add_argument(
        "--retry-failed", action="store_true", help="run again what failed in an earlier run"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="run nothing; tell tokens, what is shared, and the KV it takes",
    )


def _add_run_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("running")
    group.add_argument(
        "--url", metavar="URL", help="a server that is running (default: an engine in this process)"
    )
    group.add_argument(
        "--api-key", metavar="KEY", help=f"of that server (default: {KEY_VARIABLE} if it is set)"
    )
    group.add_argument(
        "--order",
        choices=("prefix", "file"),
        default="prefix",
        help="prefix: what begins alike goes one after the other (default: prefix)",
    )
    group.add_argument(
        "--concurrency",
        type=_positive,
        metavar="N",
        help=f"most requests under way (default: {REMOTE_CONCURRENCY}, or twice --max-num-seqs of "
        "the engine in this process)",
    )
    group.add_argument(
        "--retries",
        type=_not_negative,
        default=5,
        metavar="N",
        help="after a 429, a 5xx or a broken connection, with growing pauses (default: 5)",
    )
    group.add_argument(
        "--max-failures",
        type=_not_negative,
        metavar="N",
        help="give up when more than N lines have failed (default: never)",
    )
    group.add_argument("--quiet", action="store_true", help="show no progress")


def run(args: argparse.Namespace) -> int:
    """Run what is left of the file; 0 all done, 1 some failed or are left.

    Raises:
        ConfigError: nothing could be run: a file, a setting, the model or the server is at fault.
    """
    from radixserve.batch.reader import LineFile

    config = config_from_args(args, ENGINE_GROUPS)
    with LineFile(args.input) as source:
        if args.dry_run:
            return _print_estimate(args, config, source)
        return _run_file(args, config, source)


def _run_file(args: argparse.Namespace, config: ServerConfig, source: LineFile) -> int:
    from radixserve.batch.plan import make_order, plan_lines
    from radixserve.batch.report import BatchReport
    from radixserve.batch.writer import ResultFile

    results = ResultFile(_output_of(args), redo_failed=args.retry_failed)
    order = make_order(source, args.order)
    report = BatchReport()
    try:
        plan_lines(source, order, results, report)
        progress = BatchProgress(report, is_quiet=args.quiet)
        if len(order) > 0:
            _run_lines(args, config, order, results, progress)
        _finish(args, source, results, report)
    finally:
        order.close()
        results.close()
    _print_summary(args, report, progress.seconds)
    return EXIT_SOME_FAILED if report.num_failed or report.num_left else 0


def _output_of(args: argparse.Namespace) -> Path:
    output: Path | None = args.output
    if output is None:
        raise ConfigError("say with -o where the results go")
    if output.exists() and output.samefile(args.input):
        raise ConfigError(f"the results would be written to the input, {args.input}")
    return output


def _run_lines(
    args: argparse.Namespace,
    config: ServerConfig,
    order: LineOrder,
    results: ResultFile,
    progress: BatchProgress,
) -> None:
    try:
        if args.url is not None:
            asyncio.run(_run_remote(args, order, results, progress))
        else:
            _run_embedded(args, config, order, results, progress)
    except KeyboardInterrupt:
        print("broken off; the same command goes on from here", file=sys.stderr)
        raise


def _run_embedded(
    args: argparse.Namespace,
    config: ServerConfig,
    order: LineOrder,
    results: ResultFile,
    progress: BatchProgress,
) -> None:
    from radixserve.engine.async_engine import AsyncEngine

    engine = AsyncEngine.from_config(config.engine, progress=RichProgress())
    options = _options(args, concurrency=2 * config.engine.scheduler.max_num_seqs)

    async def go() -> None:
        async with _embedded(engine, config) as dispatch:
            await _run_all(order, dispatch, results, progress, options)

    asyncio.run(go())


@asynccontextmanager
async def _embedded(engine: Any, config: ServerConfig) -> AsyncIterator[Dispatch]:
    """Start an engine and its routes inside the `async with`, for this process alone."""
    from radixserve.batch.dispatch import HttpDispatch, open_session
    from radixserve.server.caller import Caller
    from radixserve.server.inner_door import open_inner_door

    await engine.start()
    try:
        async with open_inner_door(engine, config.http) as door:
            with door.opened_for(Caller(is_admin=True)) as headers:
                async with open_session(door.url, headers=headers) as session:
                    yield HttpDispatch(session)
    finally:
        await engine.stop()


async def _run_remote(
    args: argparse.Namespace, order: LineOrder, results: ResultFile, progress: BatchProgress
) -> None:
    from radixserve.batch.dispatch import HttpDispatch, open_session

    api_key = args.api_key or os.environ.get(KEY_VARIABLE) or None
    async with open_session(args.url, api_key=api_key) as session:
        await _check_server(session, args.url)
        options = _options(args, concurrency=REMOTE_CONCURRENCY)
        await _run_all(order, HttpDispatch(session), results, progress, options)


async def _check_server(session: Any, url: str) -> None:
    """Complain before every line fails for the same reason."""
    import aiohttp

    try:
        async with session.get("/v1/models") as response:
            if response.status in (401, 403):
                raise ConfigError(f"{url} refuses the API key; give the right one with --api-key")
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise ConfigError(
            f"cannot reach {url}: {error or 'no reply'}; start a server with 'radixserve serve', "
            "or leave --url out to run an engine in this process"
        ) from error


async def _run_all(
    order: LineOrder,
    dispatch: Dispatch,
    results: ResultFile,
    progress: BatchProgress,
    options: RunOptions,
) -> None:
    from radixserve.batch.runner import run_lines

    with progress.shown():
        await run_lines(
            iter(order), dispatch, results, progress.report, options, on_record=progress.advance
        )


def _options(args: argparse.Namespace, *, concurrency: int) -> RunOptions:
    from radixserve.batch.runner import RunOptions

    return RunOptions(
        concurrency=args.concurrency or concurrency,
        retries=args.retries,
        max_failures=args.max_failures,
    )


def _finish(
    args: argparse.Namespace, source: LineFile, results: ResultFile, report: BatchReport
) -> None:
    from radixserve.batch.reorder import put_in_order

    results.sync()
    if args.ordered and report.num_left == 0:
        put_in_order(source, results)


def _print_summary(args: argparse.Namespace, report: BatchReport, seconds: float) -> None:
    print(report.summary(seconds), file=sys.stderr)
    if report.num_lines == 0:
        print(f"{args.input} has no requests", file=sys.stderr)
    if report.is_given_up:
        print(
            f"given up: more than {args.max_failures} failures; the same command goes on",
            file=sys.stderr,
        )


def _print_estimate(args: argparse.Namespace, config: ServerConfig, source: LineFile) -> int:
    from radixserve.cli.batch_estimate import estimate_file, format_estimate

    concurrency = args.concurrency or 2 * config.engine.scheduler.max_num_seqs
    found = estimate_file(source, config, order_name=args.order, concurrency=concurrency)
    print(format_estimate(found))
    return 0


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _not_negative(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must be at least 0")
    return value
