"""`/metrics`: our names, vLLM's names for the same numbers, and a dashboard that asks for both."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from radixserve.config import HttpConfig, ObserveConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from tests.server.conftest import Client, ServeShared

pytestmark = pytest.mark.asyncio(loop_scope="session")

DASHBOARD = Path(__file__).parents[2] / "configs" / "grafana-dashboard.json"
CALL = {"prompt": "Once upon a time", "max_tokens": 4, "ignore_eos": True, "temperature": 0}

ASKED_OF_VLLM = [
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_max_num_generation_tokens",
    "request_success_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "iteration_tokens_total",
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "num_preemptions_total",
    "prompt_tokens_cached_total",
    "cache_config_info",
    "request_time_per_output_token_seconds",
    "request_prefill_kv_computed_tokens",
]
"""What vLLM's own dashboards, autoscalers and routers query; `_total` is the counters' suffix."""


async def scrape(client: Client) -> list[Metric]:
    response = await client.get("/metrics")
    assert response.status == 200
    assert response.headers["Content-Type"].startswith("text/plain")
    return list(text_string_to_metric_families(await response.text()))


def samples(families: list[Metric]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def names(families: list[Metric]) -> set[str]:
    return {sample.name for family in families for sample in family.samples}


async def test_what_dashboards_ask_of_vllm_is_there_with_our_values(client: Client) -> None:
    assert (await client.post("/v1/completions", json=CALL)).status == 200
    families = await scrape(client)
    found = samples(families)
    for name in ASKED_OF_VLLM:
        theirs = {
            (key[0].removeprefix("vllm:"), key[1]): value
            for key, value in found.items()
            if re.fullmatch(f"vllm:{name}(_bucket|_sum|_count)?", key[0])
        }
        assert theirs, name
        assert all(dict(labels)["model_name"] == "tiny" for _, labels in theirs)
        ours = name.replace("request_max_num_", "request_").replace(
            "iteration_tokens_total", "iteration_tokens"
        )
        for (theirs_name, labels), value in theirs.items():
            assert found["radixserve:" + theirs_name.replace(name, ours), labels] == value


async def test_without_aliases_there_are_our_names_only(serve_shared: ServeShared) -> None:
    client = await serve_shared(HttpConfig(observe=ObserveConfig(metrics_aliases="off")))
    found = names(await scrape(client))
    assert found
    assert all(name.startswith("radixserve:") for name in found)


async def test_calls_are_counted_by_route_and_status_and_not_by_made_up_paths(
    serve_shared: ServeShared,
) -> None:
    client = await serve_shared(HttpConfig())
    await client.get("/v1/models/some-model")
    await client.get("/v1/models")
    for number in range(3):
        await client.get(f"/made-up-{number}")
    await client.request("REPORT", "/v1/models")
    found = samples(await scrape(client))
    counts = {
        (labels["method"], labels["route"], labels["status"]): value
        for (name, key), value in found.items()
        if name == "radixserve:http_requests_total"
        for labels in [dict(key)]
    }
    assert counts == {
        ("GET", "/v1/models/{model}", "404"): 1,
        ("GET", "/v1/models", "200"): 1,
        ("GET", "(none)", "404"): 3,
        ("other", "(none)", "405"): 1,
    }


def expressions(value: Any) -> Iterator[str]:
    """Every query of a dashboard, wherever it stands."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name in ("expr", "query", "definition") and isinstance(inner, str):
                yield inner
            else:
                yield from expressions(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from expressions(inner)


async def test_every_metric_that_the_dashboard_asks_for_exists(client: Client) -> None:
    assert (await client.post("/v1/completions", json=CALL)).status == 200
    found = names(await scrape(client))
    asked = [
        name
        for text in expressions(json.loads(DASHBOARD.read_text()))
        for name in re.findall(r"radixserve:[a-z0-9_:]+", text)
    ]
    assert len(set(asked)) >= 20
    may_be_empty = {"radixserve:admission_rejections_total"}
    assert set(asked) - found - may_be_empty == set()
