"""Prometheus metrics: counters and gauges read from stats at a scrape, histograms as requests end.

Hits and queries are counters in tokens, so that a rate over any window is a true hit rate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client.core import Metric

    from radixserve.core.stats import SchedulerStats
    from radixserve.engine.request import TextDelta
    from radixserve.engine.timing import Timing

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536)

_COUNTERS = {
    "prompt_tokens": "Prompt tokens of admitted requests",
    "cached_tokens": "Prompt tokens found in the prefix cache",
    "output_tokens": "Tokens produced",
    "preemptions": "Times a running request gave way",
    "evicted_blocks": "Blocks evicted from the tree",
    "swapped_out_blocks": "Blocks of preempted requests copied to host memory",
    "swapped_in_blocks": "Blocks copied back from host memory",
    "recomputed_tokens": "Tokens computed again after a preemption",
    "steps": "Forward passes planned",
}
_GAUGES = {
    "num_running": "Requests running",
    "num_waiting": "Requests waiting",
    "num_blocks": "Blocks in the pool",
    "free_blocks": "Blocks that belong to nobody",
    "private_blocks": "Blocks of single requests",
    "evictable_blocks": "Cached blocks that nobody is using",
    "protected_blocks": "Cached blocks in use",
    "host_blocks": "Blocks in the swap space in host memory",
    "free_host_blocks": "Blocks of the swap space that hold nothing",
    "kv_usage": "Share of the pool that running requests hold",
}
_PUBLIC_NAMES = {
    "cached_tokens": "prefix_cache_hits",
    "prompt_tokens": "prefix_cache_queries",
    "output_tokens": "generation_tokens",
    "preemptions": "num_preemptions",
    "num_running": "num_requests_running",
    "num_waiting": "num_requests_waiting",
    "kv_usage": "kv_cache_usage_perc",
}


class EngineMetrics:
    """All metrics of one engine, in a registry of its own.

    Args:
        stats: Called at each scrape.
        model_name: The label of every metric.
    """

    def __init__(self, stats: Callable[[], SchedulerStats], *, model_name: str) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_StatsCollector(stats, model_name))
        self._name = model_name
        self._ttft = self._histogram("time_to_first_token_seconds", "To the first token", SECONDS)
        self._tpot = self._histogram(
            "request_time_per_output_token_seconds", "Mean between output tokens", SECONDS
        )
        self._e2e = self._histogram("e2e_request_latency_seconds", "To the last token", SECONDS)
        self._prompt = self._histogram("request_prompt_tokens", "Prompt tokens", TOKENS)
        self._output = self._histogram("request_generation_tokens", "Output tokens", TOKENS)
        self._ended = Counter(
            "radixserve:request_success",
            "Requests that ended, by finish reason",
            ("model_name", "finished_reason"),
            registry=self.registry,
        )

    def observe(self, timing: Timing, last: TextDelta) -> None:
        """Count a request that has just ended."""
        assert last.finish_reason is not None
        self._ended.labels(self._name, last.finish_reason.value).inc()
        self._prompt.labels(self._name).observe(last.usage.prompt_tokens)
        self._output.labels(self._name).observe(last.usage.completion_tokens)
        for histogram, seconds in (
            (self._ttft, timing.ttft_s),
            (self._tpot, timing.tpot_s),
            (self._e2e, timing.e2e_s),
        ):
            if seconds is not None:
                histogram.labels(self._name).observe(seconds)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(
            f"radixserve:{name}", text, ("model_name",), buckets=buckets, registry=self.registry
        )


class _StatsCollector(Collector):
    """Turns a snapshot into metric families when somebody asks."""

    def __init__(self, stats: Callable[[], SchedulerStats], model_name: str) -> None:
        self._stats = stats
        self._model_name = model_name

    def collect(self) -> Iterator[Metric]:
        """Yield one family for each counter and gauge."""
        stats = self._stats()
        for field, text in _COUNTERS.items():
            yield self._family(CounterMetricFamily, field, text, getattr(stats, field))
        for field, text in _GAUGES.items():
            yield self._family(GaugeMetricFamily, field, text, getattr(stats, field))

    def _family(
        self,
        kind: type[CounterMetricFamily | GaugeMetricFamily],
        field: str,
        text: str,
        value: float,
    ) -> Metric:
        name = _PUBLIC_NAMES.get(field, field)
        family = kind(f"radixserve:{name}", text, labels=["model_name"])
        family.add_metric([self._model_name], value)
        return family
