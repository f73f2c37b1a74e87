"""Prometheus metrics: counters and gauges read from stats at a scrape, histograms as things end.

Hits and queries are counters in tokens, so that a rate over any window is a true hit rate. They
are counted at a request's first admission, so that preemption does not inflate them.

Everything here belongs to the thread that steps the engine; a scrape runs there too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from radixserve.engine.histogram import Histogram

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from prometheus_client.core import Metric

    from radixserve.core.stats import SchedulerStats
    from radixserve.engine.request import TextDelta
    from radixserve.engine.timing import Timing
    from radixserve.runtime.step_times import StepTimes

PREFIX = "radixserve:"
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
GAPS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0)
TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536)
STEP_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)

_COUNTERS = {
    "prompt_tokens": ("prompt_tokens", "Prompt tokens of admitted requests"),
    "prompt_tokens_cached": ("cached_tokens", "Those of them found in the prefix cache"),
    "prefix_cache_queries": ("prompt_tokens", "Tokens looked up in the prefix cache"),
    "prefix_cache_hits": ("cached_tokens", "Tokens found in the prefix cache"),
    "generation_tokens": ("output_tokens", "Tokens produced"),
    "num_preemptions": ("preemptions", "Times a running request gave way"),
    "evicted_blocks": ("evicted_blocks", "Blocks evicted from the tree"),
    "swapped_out_blocks": ("swapped_out_blocks", "Blocks copied to host memory by preemptions"),
    "swapped_in_blocks": ("swapped_in_blocks", "Blocks copied back from host memory"),
    "recomputed_tokens": ("recomputed_tokens", "Tokens computed again after a preemption"),
    "steps": ("steps", "Forward passes planned"),
    "steps_ahead": ("steps_ahead", "Forward passes planned before the result of the one before"),
}
"""Name of a metric -> name in the stats, what it is."""
_GAUGES = {
    "num_requests_running": ("num_running", "Requests running"),
    "num_requests_waiting": ("num_waiting", "Requests waiting"),
    "num_blocks": ("num_blocks", "Blocks in the pool"),
    "free_blocks": ("free_blocks", "Blocks that belong to nobody"),
    "private_blocks": ("private_blocks", "Blocks of single requests"),
    "evictable_blocks": ("evictable_blocks", "Cached blocks that nobody is using"),
    "protected_blocks": ("protected_blocks", "Cached blocks in use"),
    "host_blocks": ("host_blocks", "Blocks in the swap space in host memory"),
    "free_host_blocks": ("free_host_blocks", "Blocks of the swap space that hold nothing"),
    "kv_cache_usage_perc": ("kv_usage", "Share of the pool that running requests hold, 0 to 1"),
}
_HISTOGRAMS = {
    "time_to_first_token_seconds": ("From submission to the first token", SECONDS),
    "inter_token_latency_seconds": ("Between two output tokens", GAPS),
    "request_time_per_output_token_seconds": ("Mean between output tokens", GAPS),
    "e2e_request_latency_seconds": ("From submission to the last token", SECONDS),
    "request_queue_time_seconds": ("From submission to the first step", SECONDS),
    "request_prefill_time_seconds": ("From the first step to the first token", SECONDS),
    "request_decode_time_seconds": ("From the first token to the last", SECONDS),
    "request_prompt_tokens": ("Prompt tokens", TOKENS),
    "request_generation_tokens": ("Output tokens", TOKENS),
    "request_prefill_kv_computed_tokens": ("Prompt tokens that were not cached", TOKENS),
    "iteration_tokens": ("Tokens computed in one step", STEP_TOKENS),
}


class EngineMetrics:
    """All metrics of one engine, in a registry of its own.

    Args:
        stats: Called at each scrape.
        model_name: The label of every metric.
        times: Read at each scrape.
        kernel_seconds: Called at each scrape.
    """

    def __init__(
        self,
        stats: Callable[[], SchedulerStats],
        *,
        model_name: str,
        times: StepTimes,
        kernel_seconds: Callable[[], Mapping[str, float]],
    ) -> None:
        self.registry = CollectorRegistry()
        self._histograms = {name: Histogram(bounds) for name, (_, bounds) in _HISTOGRAMS.items()}
        self._gaps = self._histograms["inter_token_latency_seconds"]
        self._step_tokens = self._histograms["iteration_tokens"]
        self._ended: dict[str, int] = {}
        self._rejected: dict[str, int] = {}
        self._forced_tokens = 0
        self._stats = stats
        self._times = times
        self._kernel_seconds = kernel_seconds
        self._labels = {"model_name": model_name}
        self.registry.register(_EngineCollector(self._families))

    def observe(self, timing: Timing, last: TextDelta) -> None:
        """Count a request that has just ended."""
        assert last.finish_reason is not None
        reason, usage = last.finish_reason.value, last.usage
        self._ended[reason] = self._ended.get(reason, 0) + 1
        self._forced_tokens += usage.forced_tokens
        for name, value in (
            ("time_to_first_token_seconds", timing.ttft_s),
            ("request_time_per_output_token_seconds", timing.tpot_s),
            ("e2e_request_latency_seconds", timing.e2e_s),
            ("request_queue_time_seconds", timing.queue_s),
            ("request_prefill_time_seconds", timing.prefill_s),
            ("request_decode_time_seconds", timing.decode_s),
            ("request_prompt_tokens", usage.prompt_tokens),
            ("request_generation_tokens", usage.completion_tokens),
            ("request_prefill_kv_computed_tokens", usage.prompt_tokens - usage.cached_tokens),
        ):
            if value is not None:
                self._histograms[name].observe(value)

    def step(self, num_tokens: int) -> None:
        """Count a step that computed `num_tokens` tokens."""
        if num_tokens:
            self._step_tokens.observe(num_tokens)

    def gap(self, seconds: float, num_tokens: int) -> None:
        """Count output tokens that came `seconds` after the ones before them."""
        self._gaps.observe(seconds, num_tokens)

    def rejected(self, reason: Literal["queue_full"]) -> None:
        """Count a request that was not even queued."""
        self._rejected[reason] = self._rejected.get(reason, 0) + 1

    def _families(self) -> Iterator[Metric]:
        stats, labels = self._stats(), self._labels
        names, values = tuple(labels), tuple(labels.values())
        for kind, table in ((CounterMetricFamily, _COUNTERS), (GaugeMetricFamily, _GAUGES)):
            for name, (field, text) in table.items():
                family = kind(PREFIX + name, text, labels=names)
                family.add_metric(values, getattr(stats, field))
                yield family
        for name, (text, _) in _HISTOGRAMS.items():
            shown = HistogramMetricFamily(PREFIX + name, text, labels=names)
            self._histograms[name].add_to(shown, values)
            yield shown
        forced = CounterMetricFamily(
            f"{PREFIX}forced_tokens",
            "Output tokens that a grammar left no choice about",
            labels=names,
        )
        forced.add_metric(values, self._forced_tokens)
        yield forced
        yield self._by("request_success", "Requests that ended", "finished_reason", self._ended)
        yield self._by("admission_rejections", "Requests refused", "reason", self._rejected)
        yield self._by("step_seconds", "Time of steps by part", "part", self._times.seconds)
        kernels = self._kernel_seconds()
        yield self._by("kernel_seconds", "Time in the model's kernels", "kernel", kernels)
        yield self._cache_config(stats)

    def _by(self, name: str, text: str, label: str, counts: Mapping[Any, float]) -> Metric:
        family = CounterMetricFamily(PREFIX + name, text, labels=(*self._labels, label))
        for value, count in counts.items():
            family.add_metric((*self._labels.values(), value), count)
        return family

    def _cache_config(self, stats: SchedulerStats) -> Metric:
        sizes = {
            "block_size": str(stats.block_size),
            "num_blocks": str(stats.num_blocks),
            "num_gpu_blocks": str(stats.num_blocks),
        }
        family = GaugeMetricFamily(
            f"{PREFIX}cache_config_info",
            "The pool's sizes, as labels; num_gpu_blocks is the name that others use",
            labels=(*self._labels, *sizes),
        )
        family.add_metric((*self._labels.values(), *sizes.values()), 1)
        return family


class _EngineCollector(Collector):
    """Asks for the metric families when somebody scrapes."""

    def __init__(self, families: Callable[[], Iterator[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """Yield them."""
        return self._families()
