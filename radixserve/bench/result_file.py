"""A run as JSON, under the names that scripts for other load clients look for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixserve.bench.summary import Metric
from radixserve.bench.table import percent_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from radixserve.bench.summary import Summary
    from radixserve.bench.target import Outcome


def result_json(summary: Summary, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings and the numbers of a run."""
    total = summary.input_tokens + summary.output_tokens
    found: dict[str, Any] = {
        **settings,
        "duration": summary.duration_s,
        "completed": summary.num_ok,
        "failed": summary.num_failed,
        "not_sent": summary.num_unsent,
        "total_input_tokens": summary.input_tokens,
        "total_output_tokens": summary.output_tokens,
        "request_throughput": summary.per_s(summary.num_ok),
        "request_goodput": None if summary.num_good is None else summary.per_s(summary.num_good),
        "output_throughput": summary.per_s(summary.output_tokens),
        "total_token_throughput": summary.per_s(total),
        "cached_tokens": summary.cached_tokens,
        "computed_tokens": summary.computed_tokens,
        "hit_rate": summary.hit_rate,
        "preemptions": summary.preemptions,
        "error_kinds": {error.kind: error.count for error in summary.errors},
    }
    for metric in Metric:
        found |= _latency_json(summary, metric)
    return found


def details_json(outcomes: Sequence[Outcome]) -> dict[str, list[Any]]:
    """Return what each request gave, a list for each fact, in the order of the answers' ends."""
    return {
        "names": [each.name for each in outcomes],
        "input_lens": [each.prompt_tokens for each in outcomes],
        "cached_lens": [each.counts.cached for each in outcomes],
        "output_lens": [each.output_tokens for each in outcomes],
        "ttfts": [each.ttft_s for each in outcomes],
        "itls": [each.gaps_s for each in outcomes],
        "e2els": [each.latency_s for each in outcomes],
        "generated_texts": [each.text for each in outcomes],
        "errors": [_error(each) for each in outcomes],
    }


def _error(outcome: Outcome) -> str:
    failure = outcome.failure
    return "" if failure is None else f"{failure.kind}: {failure.detail}"


def _latency_json(summary: Summary, metric: Metric) -> dict[str, float]:
    spread, name = summary.spreads[metric], metric.value
    return {
        f"mean_{name}_ms": spread.mean,
        f"median_{name}_ms": spread.median,
        f"std_{name}_ms": spread.std,
        **{f"p{percent_name(percent)}_{name}_ms": value for percent, value in spread.percentiles},
    }
