"""Runs every policy at every capacity over one trace."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from radixserve.core.policies import make_policy
from radixserve.replay.capacity import parse_capacity
from radixserve.replay.eviction_policy import named_policies
from radixserve.replay.optimum import OptimalCache
from radixserve.replay.path_tree import grow_path_tree
from radixserve.replay.replay_order import ARRIVAL
from radixserve.replay.report import Report, Run, TraceFacts
from radixserve.replay.sequential import replay_sequentially
from radixserve.replay.simulation import ServeSettings, Simulation

if TYPE_CHECKING:
    from radixserve.replay.path_tree import PathTree
    from radixserve.replay.sequential import CacheCounts
    from radixserve.replay.simulation import ServeCounts
    from radixserve.replay.trace import Trace

Mode = Literal["cache", "serve"]


class Progress(Protocol):
    """Who is told how far a study has come."""

    def start(self, description: str, total: int | None) -> None:
        """A step of `total` requests begins."""

    def advance(self, n: int) -> None:
        """So many more are done."""

    def finish(self) -> None:
        """The step has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySettings:
    """What to run."""

    blocks: tuple[str, ...]
    """Capacities: numbers of blocks, or shares such as `5%`."""
    policies: tuple[str, ...] = ("lru",)
    """Eviction policies; `all` stands for every one."""
    mode: Mode = "cache"
    order: str = ARRIVAL
    """Of a cache study; a served one has its own."""
    window: int | None = None
    """Requests that wait at once in a cache study whose order is not that of arrival."""
    serve: ServeSettings = field(default_factory=ServeSettings)
    kv_bytes_per_token: int | None = None


def run_study(trace: Trace, settings: StudySettings, progress: Progress) -> Report:
    """Return what every policy does at every capacity, and the optimum.

    Raises:
        ConfigError: a name is not known or a capacity is no capacity.
    """
    policies = named_policies(settings.policies)
    _check_order(settings)
    progress.start("paths of the trace", len(trace.requests))
    tree = grow_path_tree(trace, progress.advance)
    progress.finish()
    capacities = [parse_capacity(text, tree.num_blocks) for text in settings.blocks]
    capacities = sorted(set(capacities))
    runs = tuple(
        _run(trace, policy, capacity, settings, progress)
        for policy in policies
        for capacity in capacities
    )
    progress.start("optimum", len(capacities))
    optimal = OptimalCache(tree)
    optima = []
    for capacity in capacities:
        optima.append(optimal.replay(capacity))
        progress.advance(1)
    progress.finish()
    return Report(
        trace=_facts(trace, tree),
        mode=settings.mode,
        order=settings.order if settings.mode == "cache" else settings.serve.order,
        runs=runs,
        optima=tuple(optima),
        kv_bytes_per_token=settings.kv_bytes_per_token,
    )


def _check_order(settings: StudySettings) -> None:
    """Complain of a wrong name before any work is done."""
    order = settings.order if settings.mode == "cache" else settings.serve.order
    if order != ARRIVAL:
        make_policy(order)


def _run(
    trace: Trace, policy: str, capacity: int, settings: StudySettings, progress: Progress
) -> Run:
    progress.start(f"{policy} at {capacity:,} blocks", len(trace.requests))
    started_at = time.perf_counter()
    counts: CacheCounts | ServeCounts
    if settings.mode == "cache":
        counts = replay_sequentially(
            trace,
            capacity,
            policy,
            order=settings.order,
            window=settings.window,
            advance=progress.advance,
        )
    else:
        counts = Simulation(trace, capacity, policy, settings.serve).run(progress.advance)
    seconds = time.perf_counter() - started_at
    progress.finish()
    return Run(policy=policy, capacity=capacity, counts=counts, seconds=seconds)


def _facts(trace: Trace, tree: PathTree) -> TraceFacts:
    return TraceFacts(
        name=trace.name,
        requests=len(trace.requests),
        input_tokens=trace.num_input_tokens,
        block_size=trace.block_size,
        input_blocks=trace.num_input_blocks,
        unique_blocks=tree.num_blocks,
    )
