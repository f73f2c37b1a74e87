"""Swap against recompute, and what `--preemption-mode auto` makes of it, on the real model.

A request of some length is preempted; others then take some of the blocks that it left in the
tree; it resumes. A swap costs the copy out and the copy back; recomputing costs the steps until
the next token, less the one step that it would have taken anyhow; another request decodes in each
of these steps. What decides is how much is lost: a swap always copies everything out, and
recomputing pays for what is lost alone.

    python -m benchmarks.preemption
    python -m benchmarks.preemption --lengths 64 256 --repeats 9 --json out.json

On a machine that others use at the same time, `--clock cpu --num-threads 1` takes this process's
processor time in place of the wall clock.

`auto` sees what it sees in a server: the measured costs, and how far the others can still grow.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from benchmarks.machine import describe_machine
from benchmarks.summary import percentile
from benchmarks.victim import BLOCK_SIZE, Bench, Resumption, Victim

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.core.preemption import Method

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
TAILS = (0, 1, 2, 4, 8)
"""Tokens in the victim's last block, which is in no tree: lost in any case."""
FEW_BLOCKS = 4
LOST_BLOCKS = (1, 4, 16, 64)
"""Blocks that others take meanwhile; also all of them."""
TARGET_RATIO = 1.1


@dataclass(frozen=True, slots=True)
class Case:
    """One length and one loss; times in milliseconds, medians."""

    length: int
    lost_tokens: int
    recompute_ms: float
    swap_ms: float
    auto_takes: str

    @property
    def ratio(self) -> float:
        """Time of what auto takes over that of the better one."""
        taken = self.swap_ms if self.auto_takes == "swap" else self.recompute_ms
        better = min(self.swap_ms, self.recompute_ms)
        return 1.0 if taken == better else taken / better if better else float("inf")


def measure(bench: Bench, length: int, *, repeats: int) -> list[Case]:
    """Return the cases of one length. Modes take turns, so that a busy moment hits them all."""
    victim = bench.victim(length)
    cases = []
    for tail in TAILS:
        victim.grow_to(tail)
        cases.append(measure_loss(victim, length, tail, 0, repeats=repeats))
    losses = sorted({*(n for n in LOST_BLOCKS if n < victim.num_blocks), victim.num_blocks})
    return cases + [measure_loss(victim, length, TAILS[-1], n, repeats=repeats) for n in losses]


def measure_loss(victim: Victim, length: int, tail: int, lost: int, *, repeats: int) -> Case:
    """Return the case of a victim of which the tail and some blocks are lost."""
    decode_s: list[float] = []
    runs: dict[Method, list[Resumption]] = {"recompute": [], "swap": []}
    # What is small takes more runs to be seen above the noise, and less time for each.
    for _ in range(repeats if lost > FEW_BLOCKS else 3 * repeats):
        for mode, found in runs.items():
            decode_s.append(victim.decode_s())
            found.append(victim.preempt_and_resume(mode, lost))
            assert found[-1].method == mode
    recompute_ms, swap_ms = (_median_ms(found, decode_s) for found in runs.values())
    taken = victim.preempt_and_resume("auto", lost).method
    return Case(length, lost * BLOCK_SIZE + tail, recompute_ms, swap_ms, taken)


def _median_ms(runs: Sequence[Resumption], decode_s: Sequence[float]) -> float:
    seconds = percentile([run.copy_s for run in runs], 50)
    compute_s = percentile([run.compute_s for run in runs], 50)
    if compute_s > 0:
        seconds += max(0.0, compute_s - percentile(decode_s, 50))
    return 1000 * seconds


def crossover(cases: Sequence[Case]) -> float | None:
    """Return the lost tokens from which on a swap is the better one, by interpolation."""
    for before, after in itertools.pairwise(cases):
        gaps = [case.recompute_ms - case.swap_ms for case in (before, after)]
        if gaps[0] < 0 <= gaps[1]:
            share = -gaps[0] / (gaps[1] - gaps[0])
            return before.lost_tokens + share * (after.lost_tokens - before.lost_tokens)
    return None


def print_report(bench: Bench, cases: Sequence[Case], args: argparse.Namespace) -> None:
    """Print the figures as text."""
    costs = bench.costs
    print(describe_machine())
    print(
        f"{args.model}, {args.dtype}, {torch.get_num_threads()} threads, seed {args.seed}, "
        f"{args.clock} clock, medians of {args.repeats} or more; "
        f"blocks of {BLOCK_SIZE} tokens, {costs.block_bytes} bytes"
    )
    gib_per_s = costs.copy_bytes_per_s / 2**30
    print(
        f"measured at start-up in {bench.measuring_s:.2f} s: copy {gib_per_s:.1f} GiB/s "
        f"+ {1000 * costs.copy_overhead_s:.1f} ms, "
        f"prefill {costs.prefill_tokens_per_s:.0f} tokens/s "
        f"after {', '.join(f'{n}: {1000 * s:.1f} ms' for n, s in costs.few_tokens)}\n"
    )
    titles = f"{'length':>7}{'lost':>7}{'recompute ms':>14}{'swap ms':>10}"
    print(f"{titles}  {'auto takes':11}{'ratio':>6}")
    for case in cases:
        print(
            f"{case.length:7}{case.lost_tokens:7}{case.recompute_ms:14.2f}{case.swap_ms:10.2f}  "
            f"{case.auto_takes:11}{case.ratio:6.2f}"
        )
    print()
    for length in args.lengths:
        found = crossover([case for case in cases if case.length == length])
        text = "not between the losses measured" if found is None else f"at {found:.0f} lost tokens"
        print(f"length {length:5}: swap becomes the better one {text}")
    worst = max(case.ratio for case in cases)
    verdict = "met" if worst <= TARGET_RATIO else "MISSED"
    print(f"worst ratio of auto to the better one: {worst:.2f}  target {TARGET_RATIO}: {verdict}")


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m-instruct", help="as in radixserve serve")
    parser.add_argument("--dtype", default="auto", help="as in radixserve serve")
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 256, 1024, 2048])
    parser.add_argument("--num-threads", type=int, help="of the forward pass (default: all cores)")
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="wall")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    return parser.parse_args()


def main() -> None:
    """Run and report."""
    args = parse_args()
    torch.set_num_threads(args.num_threads or len(os.sched_getaffinity(0)))
    bench = Bench(
        args.model,
        args.dtype,
        max_len=max(args.lengths),
        seed=args.seed,
        clock=CLOCKS[args.clock],
    )
    cases = [
        case for length in args.lengths for case in measure(bench, length, repeats=args.repeats)
    ]
    print_report(bench, cases, args)
    if args.json:
        report = {
            "machine": describe_machine(),
            "seed": args.seed,
            "costs": asdict(bench.costs),
            "cases": [asdict(case) | {"ratio": case.ratio} for case in cases],
        }
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
