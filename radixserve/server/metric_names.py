"""The same numbers under the names that existing dashboards, autoscalers and routers ask for.

vLLM's names are ours with another prefix, but for a few. Its `vllm:kv_block_*` histograms, and
`vllm:request_num_preemptions`, have no counterpart here.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

OURS = "radixserve:"
VLLM = "vllm:"

_SAME = (
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "e2e_request_latency_seconds",
    "request_time_per_output_token_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_prefill_kv_computed_tokens",
    "request_success",
    "prompt_tokens",
    "prompt_tokens_cached",
    "generation_tokens",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "num_preemptions",
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "admission_rejections",
    "cache_config_info",
)
VLLM_NAMES: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in _SAME},
    "iteration_tokens": ("iteration_tokens_total",),
    # Every sequence is observed by itself, so the largest of a call's outputs is its only one.
    "request_generation_tokens": ("request_generation_tokens", "request_max_num_generation_tokens"),
}
"""Our name of a family, without prefix -> vLLM's names of it."""


class Exposition(Collector):
    """All the metrics of a server, with or without the other names.

    Args:
        registries: Where the metrics are.
        has_aliases: Tell those that have vLLM's names under these too.
    """

    def __init__(self, registries: Sequence[CollectorRegistry], *, has_aliases: bool) -> None:
        self._registries = tuple(registries)
        self._has_aliases = has_aliases

    def collect(self) -> Iterator[Metric]:
        """Yield every family, and its aliases after it."""
        for registry in self._registries:
            for family in registry.collect():
                yield family
                if self._has_aliases:
                    yield from _aliases(family)


def _aliases(family: Metric) -> Iterator[Metric]:
    name = family.name.removeprefix(OURS)
    for alias in VLLM_NAMES.get(name, ()):
        other = copy.copy(family)
        other.name = VLLM + alias
        other.samples = [
            sample._replace(name=VLLM + alias + sample.name.removeprefix(family.name))
            for sample in family.samples
        ]
        yield other
