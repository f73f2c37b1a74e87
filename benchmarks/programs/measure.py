"""Run one workload in one mode and keep what it gave and what it cost."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp

from benchmarks.programs.observed import ObservedBackend
from benchmarks.programs.optimum import least_computed
from benchmarks.summary import percentile
from radixserve.frontend.trace import KnowsTokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.programs.modes import Mode
    from benchmarks.programs.observed import ObservedCall
    from benchmarks.programs.workload import Workload
    from radixserve.frontend.backends.encoding import TranscriptEncoder
    from radixserve.frontend.backends.protocol import Backend


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of a workload; seconds and tokens."""

    workload: str
    mode: str
    wall_s: float
    programs: int
    calls: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    ttft_median_s: float
    ttft_p99_s: float
    call_median_s: float
    call_p99_s: float
    optimum_tokens: int | None
    """Cached tokens of the best cache; None where the backend does not tell tokens."""

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens that were cached."""
        return self.cached_tokens / self.input_tokens

    @property
    def of_optimum(self) -> float | None:
        """Cached tokens over those of the best cache."""
        if not self.optimum_tokens:
            return None
        return self.cached_tokens / self.optimum_tokens


async def flush_cache(url: str) -> None:
    """Empty a server's cache, so that runs on it do not see each other."""
    async with aiohttp.ClientSession() as session, session.post(f"{url}/cache/flush") as response:
        response.raise_for_status()


async def measure(
    workload: Workload, mode: Mode, backend: Backend, *, concurrency: int
) -> tuple[Measured, list[Any]]:
    """Run all items, and return the figures and the results.

    Args:
        backend: Of the mode, started.
        concurrency: Most programs at a time.
    """
    observed = ObservedBackend(backend)
    program = workload.program.using(observed)
    started = time.perf_counter()
    results = await program.map(
        workload.items, concurrency=concurrency, prefix_order=mode.prefix_order
    )
    wall_s = time.perf_counter() - started
    encoder = backend.encoder if isinstance(backend, KnowsTokens) else None
    figures = _summary(workload, mode, wall_s, observed.calls, encoder)
    return figures, list(results)


def _summary(
    workload: Workload,
    mode: Mode,
    wall_s: float,
    calls: Sequence[ObservedCall],
    encoder: TranscriptEncoder | None,
) -> Measured:
    usages = [call.usage for call in calls]
    input_tokens = sum(usage.input_tokens for usage in usages)
    optimum = None
    if encoder is not None:
        pairs = [(encoder.encode(call.prompt), call.output_ids) for call in calls]
        optimum = input_tokens - least_computed(pairs)
    ttft = [usage.ttft_s for usage in usages]
    total = [usage.total_s for usage in usages]
    return Measured(
        workload=workload.name,
        mode=mode.name,
        wall_s=wall_s,
        programs=len(workload.items),
        calls=len(calls),
        input_tokens=input_tokens,
        cached_tokens=sum(usage.cached_tokens for usage in usages),
        output_tokens=sum(usage.output_tokens for usage in usages),
        ttft_median_s=percentile(ttft, 50),
        ttft_p99_s=percentile(ttft, 99),
        call_median_s=percentile(total, 50),
        call_p99_s=percentile(total, 99),
        optimum_tokens=optimum,
    )
