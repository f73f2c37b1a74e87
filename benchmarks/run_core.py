"""How fast are the radix tree and the scheduler, and do they stay fast as the tree grows?

Needs no model and no GPU. Two kinds of tree are grown to each size:

    turns     leaves of 128 tokens (8 blocks of 16) below 100 shared prefixes of 512 tokens, and
              one conversation of 8,192 tokens that branches after each of its 8 turns: what a
              server's tree looks like
    1-block   leaves of 16 tokens below the same prefixes: the worst case for evicting, since each
              leaf gives up only one block

Measured on each: match of the whole conversation plus one new token; lock and unlock of that
match; insert of one more leaf; evict of 64 blocks. Leaves are inserted as fast as they are
evicted, so that a tree keeps its size. Then schedule() + update() of one step with 64 running
requests, without the forward pass.

Times are microseconds. The garbage collector is off while the clock runs, as in `timeit`: a
full collection would be charged to whichever call happens to trigger it. p50 is the median.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time
from array import array
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.machine import describe_machine
from benchmarks.summary import percentile
from radixserve.config import SchedulerConfig
from radixserve.core.admission import MIN_GROWTH_TOKENS
from radixserve.core.plan import StepResult
from radixserve.core.prefix_cache import PrefixCache
from radixserve.core.radix_tree import RadixTree
from radixserve.core.req import ReqSpec
from radixserve.core.scheduler import Scheduler
from radixserve.types import BlockId, Namespace, PackedIds, ReqId, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BLOCK_SIZE = 16
NUM_PREFIXES = 100
PREFIX_LEN = 512
CONVERSATION_LEN = 8192
NUM_TURNS = 8
EVICT_BLOCKS = 64
NAMELESS = Namespace()

TARGETS_US = {
    "match 8,192 cached tokens": 50.0,
    "evict 64 blocks (turns)": 60.0,
    "schedule + update, 64 decodes": 1000.0,
}
"""Operation -> its p50 must be below this, at every size."""


@dataclass(frozen=True)
class Row:
    """One measured operation; times in microseconds."""

    operation: str
    leaves: int | None
    samples: int
    p50: float
    p99: float
    min: float
    target: float | None

    @property
    def verdict(self) -> str:
        """Whether the target is met; empty if there is none."""
        if self.target is None:
            return ""
        return "ok" if self.p50 < self.target else "missed"


def make_row(operation: str, leaves: int | None, times_ns: Sequence[int]) -> Row:
    """Return the quantiles of some samples."""
    return Row(
        operation=operation,
        leaves=leaves,
        samples=len(times_ns),
        p50=percentile(times_ns, 50) / 1000,
        p99=percentile(times_ns, 99) / 1000,
        min=min(times_ns) / 1000,
        target=TARGETS_US.get(operation),
    )


def timed(action: Callable[[], object]) -> int:
    """Return how long one call takes, in nanoseconds."""
    start = time.perf_counter_ns()
    action()
    return time.perf_counter_ns() - start


def progress(message: str) -> None:
    """Tell the person who waits what is going on."""
    print(message, file=sys.stderr, flush=True)


class GrownTree:
    """A tree with a given number of leaves, and the means to keep it at that size."""

    def __init__(self, num_leaves: int, leaf_len: int, dice: random.Random) -> None:
        self.tree = RadixTree(BLOCK_SIZE)
        self.leaf_len = leaf_len
        self._dice = dice
        self._next_block = 0
        self._prefixes = [self.tokens(PREFIX_LEN) for _ in range(NUM_PREFIXES)]
        for _ in range(num_leaves):
            self.insert(self.leaf())
        self.conversation = self.tokens(CONVERSATION_LEN)
        turn_bytes = len(self.conversation) // NUM_TURNS
        for turn in range(1, NUM_TURNS + 1):
            self.insert(self.conversation[: turn * turn_bytes])
            self.insert(self.conversation[: turn * turn_bytes] + self.tokens(leaf_len))
        self.question = self.conversation + self.tokens(1)

    def tokens(self, length: int) -> PackedIds:
        """Random ids below 2**16, packed."""
        return array("I", array("H", self._dice.randbytes(2 * length))).tobytes()

    def leaf(self) -> PackedIds:
        """A shared prefix and a suffix that nobody else has."""
        return self._dice.choice(self._prefixes) + self.tokens(self.leaf_len)

    def blocks(self, key: PackedIds) -> list[BlockId]:
        """Block ids for a key. A tree does not mind which they are."""
        first = self._next_block
        self._next_block = first + len(key) // (4 * BLOCK_SIZE)
        return [BlockId(block) for block in range(first, self._next_block)]

    def insert(self, key: PackedIds) -> None:
        """Publish a sequence."""
        self.tree.insert(key, self.blocks(key), NAMELESS)


def measure_lookups(grown: GrownTree, leaves: int, samples: int) -> list[Row]:
    """Match, and lock with unlock."""
    tree, key = grown.tree, grown.question
    # The first lock splits the node in which the match ends; those that are timed find it split.
    tree.unlock(tree.lock(tree.match_prefix(key, NAMELESS)))
    match = tree.match_prefix(key, NAMELESS)
    assert match.matched_len == CONVERSATION_LEN
    matching = [timed(lambda: tree.match_prefix(key, NAMELESS)) for _ in range(samples)]
    locking = [timed(lambda: tree.unlock(tree.lock(match))) for _ in range(samples)]
    return [
        make_row("match 8,192 cached tokens", leaves, matching),
        make_row("lock + unlock of that match", leaves, locking),
    ]


def measure_turnover(grown: GrownTree, leaves: int, samples: int, kind: str) -> list[Row]:
    """Insert and evict in turns, so that the tree keeps its size."""
    tree = grown.tree
    a_round = EVICT_BLOCKS * BLOCK_SIZE // grown.leaf_len
    inserting, evicting = [], []
    for _ in range(samples):
        for key in [grown.leaf() for _ in range(a_round)]:
            blocks = grown.blocks(key)
            inserting.append(timed(lambda k=key, b=blocks: tree.insert(k, b, NAMELESS)))  # type: ignore[misc]
        before = tree.num_evictable_blocks
        evicting.append(timed(lambda: tree.evict(EVICT_BLOCKS)))
        assert before - tree.num_evictable_blocks == EVICT_BLOCKS
    return [
        make_row(f"insert a leaf ({kind})", leaves, inserting),
        make_row(f"evict 64 blocks ({kind})", leaves, evicting),
    ]


def measure_tree(leaves: int, samples: int, seed: int) -> list[Row]:
    """All the tree's operations at one size."""
    rows = []
    for kind, leaf_len in (("turns", 128), ("1-block", BLOCK_SIZE)):
        progress(f"growing a tree of {leaves:,} leaves ({kind}) ...")
        grown = GrownTree(leaves, leaf_len, random.Random(seed))
        gc.collect()
        gc.disable()
        try:
            if kind == "turns":
                rows += measure_lookups(grown, leaves, samples)
            rows += measure_turnover(grown, leaves, samples, kind)
        finally:
            gc.enable()
        del grown
    return rows


class Decoding:
    """A scheduler with 64 requests whose prompts have been computed, in a pool of just their size.

    Args:
        steps: Tokens that each of them will produce.
        stagger: Prompts differ in length by up to a block, so that their blocks fill in
            different steps; else all of them publish a block in the same step.
        num_waiting: Requests that wait for memory meanwhile.
    """

    NUM_RUNNING = 64
    PROMPT_LEN = 1000

    def __init__(self, *, steps: int, stagger: bool, num_waiting: int, dice: random.Random) -> None:
        self._dice = dice
        blocks_each = -(-(self.PROMPT_LEN + BLOCK_SIZE + steps) // BLOCK_SIZE)
        cache = PrefixCache(num_blocks=self.NUM_RUNNING * blocks_each, block_size=BLOCK_SIZE)
        config = SchedulerConfig(
            max_num_seqs=self.NUM_RUNNING + 1,
            max_num_batched_tokens=self.NUM_RUNNING * (self.PROMPT_LEN + BLOCK_SIZE),
        )
        self.scheduler = Scheduler(cache, config, max_model_len=1 << 20)
        for i in range(self.NUM_RUNNING):
            self._add(f"r{i}", self.PROMPT_LEN + (i % BLOCK_SIZE if stagger else 0), steps)
        self.step()
        for i in range(num_waiting):
            self._add(f"w{i}", self.PROMPT_LEN, steps)
        self.step()

    def _add(self, name: str, prompt_len: int, max_tokens: int) -> None:
        ids = array("I", array("H", self._dice.randbytes(2 * prompt_len))).tobytes()
        params = SamplingParams(max_tokens=max_tokens, seed=0)
        self.scheduler.add(ReqSpec(req_id=ReqId(name), prompt=ids, params=params))

    def step(self) -> int:
        """Do one step; return the nanoseconds of schedule and update together."""
        start = time.perf_counter_ns()
        plan = self.scheduler.schedule(0.0)
        scheduled = time.perf_counter_ns() - start
        tokens = [self._dice.randrange(1 << 16) for _ in plan.reqs]
        result = StepResult(plan.step, tuple(tokens))
        start = time.perf_counter_ns()
        self.scheduler.update(plan, result)
        return time.perf_counter_ns() - start + scheduled

    @classmethod
    def measure(
        cls, samples: int, *, stagger: bool, num_waiting: int, dice: random.Random
    ) -> list[int]:
        """Time steps in which all 64 decode, over as many fresh schedulers as that takes."""
        times: list[int] = []
        steps = MIN_GROWTH_TOKENS - BLOCK_SIZE
        while len(times) < samples:
            decoding = cls(
                steps=MIN_GROWTH_TOKENS, stagger=stagger, num_waiting=num_waiting, dice=dice
            )
            gc.collect()
            gc.disable()
            try:
                times += [decoding.step() for _ in range(steps)]
            finally:
                gc.enable()
            assert len(decoding.scheduler.queues.running) == cls.NUM_RUNNING
            assert decoding.scheduler.counters.preemptions == 0
        return times


def measure_scheduler(samples: int, seed: int) -> list[Row]:
    """One step with 64 decodes, under three circumstances."""
    rows = []
    for operation, stagger, num_waiting in (
        ("schedule + update, 64 decodes", True, 0),
        ("the same, blocks fill in lockstep", False, 0),
        ("the same, 200 waiting for memory", True, 200),
    ):
        progress(f"{operation} ...")
        times = Decoding.measure(
            samples, stagger=stagger, num_waiting=num_waiting, dice=random.Random(seed)
        )
        rows.append(make_row(operation, None, times))
    return rows


def print_table(rows: Sequence[Row]) -> None:
    """Print what was measured, a line an operation and size."""
    print("microseconds; garbage collector off while the clock runs\n")
    header = f"{'operation':<36}{'leaves':>9}{'p50':>10}{'p99':>10}{'min':>10}{'target':>9}"
    print(header)
    for row in rows:
        leaves = "" if row.leaves is None else f"{row.leaves:,}"
        target = "" if row.target is None else f"< {row.target:.0f}"
        print(
            f"{row.operation:<36}{leaves:>9}{row.p50:>10.1f}{row.p99:>10.1f}{row.min:>10.1f}"
            f"{target:>9}  {row.verdict}".rstrip()
        )


def print_growth(rows: Sequence[Row]) -> None:
    """Print how much slower each operation is in the largest tree than in the smallest."""
    print("\np50 in the largest tree / in the smallest")
    for operation in dict.fromkeys(row.operation for row in rows if row.leaves is not None):
        sizes = [row.p50 for row in rows if row.operation == operation]
        print(f"{operation:<36}{sizes[-1] / sizes[0]:>9.2f}x")


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
    for leaves in args.leaves:
        rows += measure_tree(leaves, args.samples, args.seed)
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
