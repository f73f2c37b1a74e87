"""Prompt programs of the papers on a real server, with its cache and without.

Starts `radixserve serve` twice, with the prefix cache and without it, and runs each workload in
four modes: through the frontend with the cache; the same without hints; the same calls as text
through the OpenAI-compatible API, in file order; and through the frontend without a cache. The
cache is emptied before each run.

    python -m benchmarks.programs                       all of them, about half an hour
    python -m benchmarks.programs mmlu tot --rounds 3   two of them, each mode three times in turn
    python -m benchmarks.programs --plot programs.png --json programs.json -- --num-blocks 512

The optimum is that of a cache without end which is asked in the best order; 96 % of it is the
target (as reached by SGLang's cache-aware order, arXiv 2312.07104).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.machine import describe_machine
from benchmarks.programs.catalog import CATALOG
from benchmarks.programs.measure import Measured, flush_cache, measure
from benchmarks.programs.modes import MODES
from benchmarks.programs.report import HEAD, plot, print_rows, total_speedup
from benchmarks.programs.workload import DEFAULT_DATA, Source
from benchmarks.server_process import running_server

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.programs.modes import Mode
    from benchmarks.programs.workload import Workload


async def run(args: argparse.Namespace) -> list[Measured]:
    """Run all workloads in all modes, printing rows as they are done."""
    source = Source(args.data, args.scale)
    workloads = [CATALOG[name](source) for name in args.workloads or CATALOG]
    flags = ["--model", args.model, "--num-blocks", str(args.num_blocks), *args.server_flags]
    modes = [mode for mode in MODES if not args.modes or mode.name in args.modes]
    async with AsyncExitStack() as stack:
        urls = {True: await stack.enter_async_context(running_server(flags))}
        if not all(mode.has_cache for mode in modes):
            without = [*flags, "--no-prefix-cache"]
            urls[False] = await stack.enter_async_context(running_server(without))
        rows: list[Measured] = []
        print(HEAD)
        for workload in workloads:
            print(f"{workload.name}: {len(workload.items)} programs, {workload.about}")
            rows += await run_workload(workload, modes, urls, args)
    return rows


async def run_workload(
    workload: Workload, modes: list[Mode], urls: Mapping[bool, str], args: argparse.Namespace
) -> list[Measured]:
    """Run one workload in all modes, round after round."""
    rows: list[Measured] = []
    results: dict[str, list[Any]] = {}
    for _ in range(args.rounds):
        for mode in modes:
            url = urls[mode.has_cache]
            await flush_cache(url)
            backend = mode.connect(url)
            try:
                await backend.start()
                row, results[mode.name] = await measure(
                    workload, mode, backend, concurrency=args.concurrency
                )
            finally:
                await backend.close()
            rows.append(row)
    first = results[modes[0].name]
    same = {mode: f"{_num_same(first, found)} same" for mode, found in results.items()}
    print_rows(rows, same)
    return rows


def _num_same(left: list[Any], right: list[Any]) -> int:
    return sum(a == b for a, b in zip(left, right, strict=True))


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.programs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [mode.name for mode in MODES]
    parser.add_argument(
        "workloads", nargs="*", metavar="WORKLOAD", help=f"any of {', '.join(CATALOG)}; all if none"
    )
    parser.add_argument("--modes", nargs="*", choices=names, help="all of them by default")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each mode, in turn")
    parser.add_argument("--concurrency", type=int, default=16, help="programs at a time")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of items")
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA, help="the data's folder")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="as in radixserve serve")
    parser.add_argument("--num-blocks", type=int, default=1024, help="the pool, 16 tokens each")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--plot", type=Path, help="draw the throughputs into this PNG")
    argv, server_flags = _split(sys.argv[1:])
    args = parser.parse_args(argv)
    unknown = sorted(set(args.workloads) - set(CATALOG))
    if unknown:
        parser.error(f"no workload is called {unknown[0]!r}; known: {', '.join(CATALOG)}")
    args.server_flags = server_flags
    return args


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    """Return what stands before `--`, and what stands behind it."""
    if "--" not in argv:
        return argv, []
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]


def main() -> None:
    """Run and report."""
    args = parse_args()
    print(describe_machine())
    print(
        f"{args.concurrency} programs at a time, pool of {args.num_blocks} blocks, temperature 0 "
        "(tot: 0.8, seeded by path)\n"
    )
    rows = asyncio.run(run(args))
    for mode in dict.fromkeys(row.mode for row in rows):
        ratio = total_speedup(rows, mode)
        print(f"{mode}: {ratio:.2f} times the wall time of the first (median of workloads)")
    if args.json:
        report = {"machine": describe_machine(), "runs": [asdict(row) for row in rows]}
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if args.plot:
        plot(rows, args.plot)


if __name__ == "__main__":
    main()
