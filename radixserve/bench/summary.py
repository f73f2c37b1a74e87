"""A run as a few numbers."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixserve.bench.goodput import is_good
from radixserve.bench.spread import Spread

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from radixserve.bench.counters import ServerCounters
    from radixserve.bench.load import Load
    from radixserve.bench.target import Outcome


class Metric(enum.Enum):
    """A latency of which a run has many."""

    TTFT = "ttft"
    TPOT = "tpot"
    ITL = "itl"
    E2EL = "e2el"


TITLES = {
    Metric.TTFT: "Time to First Token",
    Metric.TPOT: "Time per Output Token (excl. 1st token)",
    Metric.ITL: "Inter-token Latency",
    Metric.E2EL: "End-to-end Latency",
}


@dataclass(frozen=True, slots=True)
class ErrorCount:
    """Requests that failed in the same way."""

    kind: str
    count: int
    example: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a run comes to. Tokens are of the requests that succeeded; latencies in milliseconds."""

    num_planned: int
    num_ok: int
    num_failed: int
    duration_s: float
    input_tokens: int
    output_tokens: int
    cached_tokens: int | None
    """Prompt tokens that came from the server's cache; None where it does not tell."""
    preemptions: int | None
    num_good: int | None
    """Requests within the limits; None without limits."""
    spreads: Mapping[Metric, Spread]
    errors: tuple[ErrorCount, ...]

    @property
    def num_unsent(self) -> int:
        """Later turns of conversations of which a turn had failed."""
        return self.num_planned - self.num_ok - self.num_failed

    @property
    def computed_tokens(self) -> int | None:
        """Prompt tokens that the server had to compute."""
        return None if self.cached_tokens is None else self.input_tokens - self.cached_tokens

    @property
    def hit_rate(self) -> float | None:
        """Share of the prompt tokens that came from the cache."""
        if self.cached_tokens is None or not self.input_tokens:
            return None
        return self.cached_tokens / self.input_tokens

    def per_s(self, amount: float) -> float:
        """Return an amount per second of the run."""
        return amount / self.duration_s if self.duration_s > 0 else 0.0


def summarise(
    load: Load,
    *,
    percents: Sequence[float] = (99.0,),
    limits_ms: Mapping[str, float] | None = None,
    counted: ServerCounters | None = None,
) -> Summary:
    """Return the summary of a run.

    Args:
        percents: Percentiles wanted of each latency.
        limits_ms: For goodput, by `ttft`, `tpot`, `e2el`.
        counted: What the server has counted in the meantime. Its hits stand in for those of the
            answers where these tell none.
    """
    fine = [outcome for outcome in load.outcomes if outcome.failure is None]
    return Summary(
        num_planned=load.num_planned,
        num_ok=len(fine),
        num_failed=len(load.outcomes) - len(fine),
        duration_s=load.duration_s,
        input_tokens=sum(outcome.prompt_tokens for outcome in fine),
        output_tokens=sum(outcome.output_tokens for outcome in fine),
        cached_tokens=_cached_tokens(fine, counted),
        preemptions=None if counted is None else counted.preemptions,
        num_good=sum(is_good(each, limits_ms) for each in fine) if limits_ms else None,
        spreads={
            metric: Spread.of((1e3 * value for value in values_of(metric, fine)), percents)
            for metric in Metric
        },
        errors=count_errors(load.outcomes),
    )


def values_of(metric: Metric, outcomes: Sequence[Outcome]) -> Iterator[float]:
    """Yield a latency of all outcomes in seconds; several of each for the gaps."""
    for outcome in outcomes:
        match metric:
            case Metric.TTFT:
                values = [outcome.ttft_s]
            case Metric.TPOT:
                values = [outcome.tpot_s]
            case Metric.ITL:
                values = [*outcome.gaps_s]
            case Metric.E2EL:
                values = [outcome.latency_s]
        yield from (value for value in values if value is not None)


def count_errors(outcomes: Sequence[Outcome]) -> tuple[ErrorCount, ...]:
    """Return the kinds of failures, the most frequent first, each with its first detail."""
    failures = [outcome.failure for outcome in outcomes if outcome.failure is not None]
    counts = Counter(failure.kind for failure in failures)
    return tuple(
        ErrorCount(kind, count, next(each.detail for each in failures if each.kind == kind))
        for kind, count in counts.most_common()
    )


def _cached_tokens(fine: Sequence[Outcome], counted: ServerCounters | None) -> int | None:
    # A server that tells hits may leave them out where there are none.
    told = [each.counts.cached for each in fine if each.counts.cached is not None]
    if told:
        return sum(told)
    return counted.hit_tokens if counted is not None and counted.queried_tokens else None
