"""Hit rates of every eviction policy at every capacity over public traces, without a model.

    python -m benchmarks.run_traces --data ../shared/data
    python -m benchmarks.run_traces --traces few-shot --policies lru lfu --shares 1% 5%
    python -m benchmarks.run_traces --orders                few-shot batch, 8 k tokens of cache

Prints a table for each trace: percent of the input blocks, capacities as shares of the distinct
ones, and in the last column how long the policy's runs took together.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from radixserve.replay.capacity import parse_capacity
from radixserve.replay.eviction_policy import ALL, named_policies
from radixserve.replay.optimum import OptimalCache
from radixserve.replay.path_tree import grow_path_tree
from radixserve.replay.readers.detect import read_trace
from radixserve.replay.sequential import replay_sequentially

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.replay.trace import Trace

DEFAULT_DATA = Path(__file__).parents[2] / "shared/data"
SHARES = ("1%", "2%", "5%", "10%", "20%", "50%")
ORDERS = ("arrival", "lpm", "dfs", "sweep", "fair")
ORDER_BLOCKS = 512
"""8 k tokens at 16 a block."""

TRACES = {
    "conversation": ["mooncake/conversation_trace.jsonl.gz"],
    "synthetic": ["mooncake/synthetic_trace.jsonl.gz"],
    "agents": ["agentic_coding/sessions.jsonl.gz"],
    "agent-text": [
        "agent_text/miniswe.jsonl.gz",
        "agent_text/magagent.jsonl.gz",
        "agent_text/tau_bench_airline.jsonl.gz",
    ],
    "few-shot": ["few_shot"],
}


@dataclass(frozen=True, slots=True)
class Line:
    """One policy over one trace: percent at each capacity, and seconds for all of them."""

    policy: str
    percents: tuple[float, ...]
    seconds: float


def measure(trace: Trace, policies: Sequence[str], shares: Sequence[str]) -> list[Line]:
    """Return the optimum's line and one for each policy."""
    started_at = time.perf_counter()
    tree = grow_path_tree(trace)
    optimal = OptimalCache(tree)
    capacities = [parse_capacity(share, tree.num_blocks) for share in shares]
    hits = [optimal.replay(capacity).hits for capacity in capacities]
    percents = tuple(100 * each / trace.num_input_blocks for each in hits)
    lines = [Line("(optimum)", percents, time.perf_counter() - started_at)]
    for policy in named_policies(policies):
        print(f"{trace.name}: {policy}", file=sys.stderr, flush=True)
        started_at = time.perf_counter()
        counts = [replay_sequentially(trace, capacity, policy) for capacity in capacities]
        percents = tuple(100 * each.hit_rate for each in counts)
        lines.append(Line(policy, percents, time.perf_counter() - started_at))
    return lines


def print_table(title: str, columns: Sequence[str], lines: Sequence[Line]) -> None:
    """Print lines as a table in Markdown."""
    print(f"\n**{title}**\n")
    print("| policy |", " | ".join(columns), "| seconds |")
    print("|---" * (len(columns) + 2) + "|")
    for line in lines:
        cells = " | ".join(f"{each:.1f}" for each in line.percents)
        print(f"| {line.policy} | {cells} | {line.seconds:.1f} |", flush=True)


def measure_orders(trace: Trace, policy: str) -> list[Line]:
    """Return the hit rate of each queue order over a batch."""
    lines = []
    for order in ORDERS:
        started_at = time.perf_counter()
        counts = replay_sequentially(trace, ORDER_BLOCKS, policy, order=order)
        seconds = time.perf_counter() - started_at
        lines.append(Line(order, (100 * counts.hit_rate,), seconds))
    return lines


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA)
    parser.add_argument("--traces", nargs="+", choices=TRACES, default=list(TRACES))
    parser.add_argument("--policies", nargs="+", default=[ALL])
    parser.add_argument("--shares", nargs="+", default=SHARES)
    parser.add_argument("--orders", action="store_true", help="queue orders over the few-shot set")
    parser.add_argument("--order-policy", default="lru", help="eviction policy under --orders")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> None:
    """Run and print."""
    args = parse_args()
    results: dict[str, list[Line]] = {}
    for name in ["few-shot"] if args.orders else args.traces:
        trace = read_trace([args.data / each for each in TRACES[name]])
        if args.orders:
            lines, columns = measure_orders(trace, args.order_policy), ["8 k tokens"]
        else:
            lines, columns = measure(trace, args.policies, args.shares), list(args.shares)
        title = f"{name}: {len(trace.requests):,} requests, {trace.num_input_tokens:,} tokens"
        print_table(title, columns, lines)
        results[name] = lines
    if args.json is not None:
        rows = {
            name: {line.policy: line.percents for line in lines} for name, lines in results.items()
        }
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
