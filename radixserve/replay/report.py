"""What a study of a trace found, as frozen values that become JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from radixserve.replay.optimum import Optimum
    from radixserve.replay.sequential import CacheCounts
    from radixserve.replay.simulation import ServeCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFacts:
    """A trace in numbers."""

    name: str
    requests: int
    input_tokens: int
    block_size: int
    """Tokens a block."""
    input_blocks: int
    unique_blocks: int

    @property
    def infinite_hits(self) -> int:
        """Block hits of a cache that never evicts: all but the first use of each block."""
        return self.input_blocks - self.unique_blocks

    @property
    def infinite_hit_rate(self) -> float:
        """Share of the input blocks that a cache that never evicts would hit, from 0 to 1."""
        return self.share(self.infinite_hits)

    def share(self, blocks: int) -> float:
        """Return a number of blocks as a share of the input blocks."""
        return blocks / self.input_blocks if self.input_blocks else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One policy at one capacity."""

    policy: str
    capacity: int
    """Blocks."""
    counts: CacheCounts | ServeCounts
    seconds: float
    """How long the replay took, in real time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A study: some policies at some capacities, and the optimum at each."""

    trace: TraceFacts
    mode: str
    order: str
    runs: tuple[Run, ...]
    optima: tuple[Optimum, ...]
    kv_bytes_per_token: int | None = None

    @property
    def policies(self) -> list[str]:
        """Names of the eviction policies, in the order in which they were asked for."""
        return list(dict.fromkeys(run.policy for run in self.runs))

    def optimal_hit_rate(self, capacity: int) -> float:
        """Return the optimum's hit rate at one of the study's capacities, from 0 to 1."""
        hits = next(each.hits for each in self.optima if each.capacity == capacity)
        return self.trace.share(hits)

    def percent_of_optimum(self, run: Run) -> float:
        """Return a run's hit rate in percent of the optimum's at the same capacity."""
        return percent(run.counts.hit_rate, self.optimal_hit_rate(run.capacity))

    def percent_of_infinite(self, run: Run) -> float:
        """Return a run's hit rate in percent of that of a cache that never evicts."""
        return percent(run.counts.hit_rate, self.trace.infinite_hit_rate)

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values; rates are from 0 to 1, capacities in blocks."""
        trace = asdict(self.trace) | {"infinite_hit_rate": self.trace.infinite_hit_rate}
        optima = [asdict(each) | {"hit_rate": self.trace.share(each.hits)} for each in self.optima]
        return {
            "trace": trace,
            "mode": self.mode,
            "order": self.order,
            "runs": [self._run_to_json(run) for run in self.runs],
            "optimum": optima,
        }

    def _run_to_json(self, run: Run) -> dict[str, Any]:
        return {
            "policy": run.policy,
            "capacity": run.capacity,
            "capacity_tokens": run.capacity * self.trace.block_size,
            "hit_rate": run.counts.hit_rate,
            "percent_of_optimum": self.percent_of_optimum(run),
            "percent_of_infinite": self.percent_of_infinite(run),
            "seconds": run.seconds,
            **asdict(run.counts),
        }


def percent(part: float, whole: float) -> float:
    """Return `part` in percent of `whole`, 100 of nothing."""
    return 100 * part / whole if whole else 100.0
