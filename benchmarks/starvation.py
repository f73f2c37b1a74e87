"""Do cold requests starve beside a stream of warm ones? Each order of the queue, simulated.

More requests arrive than can be served: 95 % share one of a few cached prefixes, 5 % have nothing
in common with anybody. The scheduler is the server's own; a cost model stands for the model, and
time is simulated. A wait is counted in seconds and in admissions of others, and compared with the
bound of the default order: with m requests before it in order of arrival, nobody waits for more
than (m + 1) * aged_every admissions.

    python -m benchmarks.starvation
    python -m benchmarks.starvation --orders sweep lpm --requests 20000
"""

from __future__ import annotations

import argparse
import random
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.machine import describe_machine
from benchmarks.summary import percentile
from radixserve.config import SchedulerConfig
from radixserve.core.prefix_cache import PrefixCache
from radixserve.core.req import ReqSpec
from radixserve.core.scheduler import Scheduler
from radixserve.replay.cost_model import CostModel
from radixserve.replay.simulated_runner import SimulatedRunner
from radixserve.types import ReqId, SamplingParams, pack_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

BLOCK_SIZE = 16
NUM_PREFIXES = 8
PREFIX_LEN = 960
OWN_LEN = 40
COLD_LEN = 1000
OUTPUT_LEN = 16
COLD_SHARE = 0.05
NUM_BLOCKS = 4096


@dataclass(slots=True)
class Wait:
    """One request's way through the queue."""

    is_cold: bool
    arrived_s: float
    before: int
    """Requests in the queue when it arrived."""
    admissions_before: int
    waited_s: float = 0.0
    waited_admissions: int = -1


@dataclass(frozen=True, slots=True)
class Row:
    """One order."""

    order: str
    warm_p50_s: float
    warm_p99_s: float
    cold_p50_s: float
    cold_p99_s: float
    cold_worst_admissions: int
    worst_share_of_bound: float
    """Largest wait in admissions over its bound, cold ones only."""
    hit_rate: float
    makespan_s: float


class Load:
    """The same arrivals for every order."""

    def __init__(self, count: int, rate_per_s: float, seed: int) -> None:
        dice = random.Random(seed)
        prefixes = [self._ids(dice, PREFIX_LEN) for _ in range(NUM_PREFIXES)]
        at_s = 0.0
        self.arrivals: list[tuple[float, bool, list[int]]] = []
        for _ in range(count):
            at_s += dice.expovariate(rate_per_s)
            is_cold = dice.random() < COLD_SHARE
            own = self._ids(dice, COLD_LEN if is_cold else OWN_LEN)
            self.arrivals.append((at_s, is_cold, own if is_cold else dice.choice(prefixes) + own))

    @staticmethod
    def _ids(dice: random.Random, length: int) -> list[int]:
        return [dice.randrange(100_000) for _ in range(length)]


def simulate(load: Load, order: str, aged_every: int) -> Row:
    """Serve the load under one order."""
    cache = PrefixCache(num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE)
    config = SchedulerConfig(
        schedule_policy=order,
        aged_every=aged_every,
        max_num_seqs=32,
        max_num_batched_tokens=2048,
        max_queue_len=len(load.arrivals),
    )
    scheduler = Scheduler(cache, config, max_model_len=4096)
    runner = SimulatedRunner(CostModel(), 1)
    waits: dict[str, Wait] = {}
    arrivals = iter(enumerate(load.arrivals))
    upcoming = next(arrivals, None)
    admissions = 0
    while upcoming is not None or scheduler.has_work:
        while upcoming is not None and upcoming[1][0] <= runner.now_s:
            number, (at_s, is_cold, prompt) = upcoming
            waits[str(number)] = Wait(is_cold, at_s, scheduler.num_queued, admissions)
            params = SamplingParams(temperature=0.0, max_tokens=OUTPUT_LEN)
            scheduler.add(
                ReqSpec(req_id=ReqId(str(number)), prompt=pack_ids(prompt), params=params)
            )
            upcoming = next(arrivals, None)
        if not scheduler.has_work and upcoming is not None:
            runner.idle_until(upcoming[1][0])
            continue
        plan = scheduler.schedule(runner.now_s)
        for req_id in scheduler.queues.running:
            wait = waits[req_id]
            if wait.waited_admissions < 0:
                wait.waited_s = runner.now_s - wait.arrived_s
                wait.waited_admissions = admissions - wait.admissions_before
                admissions += 1
        scheduler.update(plan, runner.execute(plan))
    return _summarise(order, list(waits.values()), scheduler, runner.now_s, aged_every)


def _summarise(
    order: str, waits: Sequence[Wait], scheduler: Scheduler, makespan_s: float, aged_every: int
) -> Row:
    warm = [wait.waited_s for wait in waits if not wait.is_cold]
    cold = [wait for wait in waits if wait.is_cold]
    seconds = [wait.waited_s for wait in cold]
    stats = scheduler.stats()
    return Row(
        order=order,
        warm_p50_s=percentile(warm, 50),
        warm_p99_s=percentile(warm, 99),
        cold_p50_s=percentile(seconds, 50),
        cold_p99_s=percentile(seconds, 99),
        cold_worst_admissions=max(wait.waited_admissions for wait in cold),
        worst_share_of_bound=max(
            wait.waited_admissions / ((wait.before + 1) * aged_every) for wait in cold
        ),
        hit_rate=stats.cached_tokens / stats.prompt_tokens,
        makespan_s=makespan_s,
    )


def print_table(rows: Sequence[Row]) -> None:
    """Print a line an order."""
    print(
        f"{'order':10}{'warm wait p50/p99 s':>22}{'cold wait p50/p99 s':>22}"
        f"{'worst cold, admissions':>24}{'of its bound':>14}{'hits':>8}{'all in s':>10}"
    )
    for row in rows:
        print(
            f"{row.order:10}{row.warm_p50_s:13.1f} /{row.warm_p99_s:7.1f}"
            f"{row.cold_p50_s:13.1f} /{row.cold_p99_s:7.1f}{row.cold_worst_admissions:24,}"
            f"{row.worst_share_of_bound:13.1%}{row.hit_rate:9.1%}{row.makespan_s:9.1f}"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate every order over the same load."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--orders", nargs="+", default=["sweep", "fair", "lpm", "dfs", "fcfs"], metavar="NAME"
    )
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=250.0, help="arrivals a second")
    parser.add_argument("--aged-every", type=int, default=SchedulerConfig().aged_every)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    load = Load(args.requests, args.rate, args.seed)
    rows = []
    for order in args.orders:
        print(f"{order} ...", file=sys.stderr, flush=True)
        rows.append(simulate(load, order, args.aged_every))
    print(f"{describe_machine()}, seed {args.seed}, simulated time")
    print(f"{args.requests:,} requests, {args.rate:g} a second, {COLD_SHARE:.0%} cold\n")
    print_table(rows)
    bound = [row for row in rows if row.order in ("sweep", "fair")]
    if bound:
        met = all(row.worst_share_of_bound <= 1 for row in bound)
        print(f"\ncold waits within the bound of sweep and fair: {'met' if met else 'MISSED'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
