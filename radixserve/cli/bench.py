"""`radixserve bench`: how fast is a server, or an engine in this process?"""

from __future__ import annotations

import argparse
from typing import Any

from radixserve.cli import bench_serve, bench_throughput

EPILOG = """\
examples:
  radixserve bench serve --dataset-name w1 --max-concurrency 8
  radixserve bench throughput --dataset-name w3 --num-blocks 4000

'radixserve bench ACTION --help' explains each one.
"""


def add_parser(commands: Any) -> None:
    """Add this command to the sub-parsers of the command line."""
    parser = commands.add_parser(
        "bench",
        help="measure a server, or an engine in this process",
        description="Send a load and report throughput, latencies and what the cache saved.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    for action in (bench_serve, bench_throughput):
        action.add_parser(actions)
