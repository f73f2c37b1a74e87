"""How fast are the radix tree and the scheduler, and do they stay fast as the tree grows?

Needs no model and no GPU. Two kinds of tree are grown to each size:

    turns     leaves of 128 tokens (8 blocks of 16) below 100 shared prefixes of 512 tokens, and
              one conversation of 8,192 tokens that branches after each of its 8 turns: what a
              server's tree looks like
    1-block   leaves of 16 tokens below the same prefixes: the worst case for evicting, since each
              leaf gives up only one block

Measured on each: match of the whole conversation plus one new token; lock and unlock of that
match; insert of one more leaf; evict of 64 blocks. Leaves are inserted as fast as they are
evicted, so that a tree keeps its size. The same evict with every eviction policy. Then schedule() +
update() of one step, without the forward pass: with 64 running requests, and with a crowd of 256
running and 4,096 waiting ones under each order of the queue.

Times are microseconds. The garbage collector is off while the clock runs, as in `timeit`: a
full collection would be charged to whichever call happens to trigger it. p50 is the median.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.busy_scheduler import measure_crowd, measure_scheduler
from benchmarks.core_rows import print_growth, print_table
from benchmarks.grown_tree import BLOCK_SIZE, measure_policy, measure_tree
from benchmarks.machine import describe_machine
from radixserve.core.eviction.names import POLICY_NAMES as EVICTION_POLICIES

if TYPE_CHECKING:
    from collections.abc import Sequence


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run_core",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n"
        "  python -m benchmarks.run_core --quick             a few seconds, to see that it works\n"
        "  python -m benchmarks.run_core --json core.json    the whole, for a table or a graph\n",
    )
    parser.add_argument("--quick", action="store_true", help="small trees and few samples")
    parser.add_argument(
        "--leaves",
        type=int,
        nargs="+",
        default=[1_000, 10_000, 100_000, 300_000],
        help="sizes of the trees, smallest first (default: %(default)s)",
    )
    parser.add_argument(
        "--policies",
        nargs="*",
        default=EVICTION_POLICIES,
        metavar="NAME",
        help="eviction policies to measure (default: all)",
    )
    parser.add_argument(
        "--orders",
        nargs="*",
        default=["sweep", "fair", "lpm", "dfs", "fcfs"],
        metavar="NAME",
        help="orders of the queue to measure (default: %(default)s)",
    )
    parser.add_argument("--samples", type=int, default=500, help="timed calls (default: 500)")
    parser.add_argument("--seed", type=int, default=0, help="of all token ids (default: 0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    args = parser.parse_args(argv)
    if args.quick:
        args.leaves, args.samples = [200, 2_000], 50
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print. A missed target is a figure, not a failure: the status is 0."""
    args = parse_args(argv)
    rows = measure_scheduler(args.samples, args.seed)
    rows += measure_crowd(args.orders, args.seed)
    for leaves in args.leaves:
        rows += measure_tree(leaves, args.samples, args.seed)
        for policy in args.policies:
            rows += measure_policy(policy, leaves, args.samples, args.seed)
    rows.sort(key=lambda row: (row.leaves is None, row.leaves is not None and row.operation))
    machine = describe_machine()
    print(f"{machine}, seed {args.seed}, block size {BLOCK_SIZE}")
    print_table(rows)
    print_growth(rows)
    if args.json is not None:
        report = {
            "machine": machine,
            "seed": args.seed,
            "block_size": BLOCK_SIZE,
            "rows": [{**asdict(row), "verdict": row.verdict} for row in rows],
        }
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
