"""`radixserve bench`: how fast is a server, an engine in this process, a kernel?"""

from __future__ import annotations

import argparse
from typing import Any

from radixserve.cli import bench_kernels, bench_serve, bench_throughput

EPILOG = """\
examples:
  radixserve bench serve --dataset-name w1 --max-concurrency 8
  radixserve bench throughput --dataset-name w3 --num-blocks 4000
  radixserve bench kernels --quick

'radixserve bench ACTION --help' explains each one.
"""


def add_parser(commands: Any) -> None:
    """Add this command to the sub-parsers of the command line."""
    parser = commands.add_parser(
        "bench",
        help="measure a server, an engine in this process, or the kernels",
        description="Send a load and report throughput, latencies and what the cache saved; or "
        "measure the kernels against this machine's limits.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    for action in (bench_serve, bench_throughput, bench_kernels):
        action.add_parser(actions)
