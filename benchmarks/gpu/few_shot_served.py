"""The few-shot workload through the real server, end to end."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import few_shot
from benchmarks.gpu.row import SkippedError, at_least, told

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.gpu.rig import Rig
    from benchmarks.gpu.row import Row

GPU_SETTINGS = Path(__file__).parents[2] / "configs" / "gpu.toml"

MOST_SECONDS = 240.0
"""Both servers together: what hangs must not hold the machine."""


class FewShotSection:
    """Many questions behind one beginning, with the prefix cache and without it."""

    name = "few-shot"

    def run(self, rig: Rig) -> Iterator[Row]:
        """Yield speeds, the share of tokens from the cache, and how many texts are the same."""
        if rig.model_folder is None:
            raise SkippedError("it needs a model with a tokenizer: --model FOLDER")
        report = asyncio.run(_report(rig))
        for outcome in report["runs"]:
            label = outcome["label"]
            yield told(f"{label}: output", outcome["output_tokens_per_s"], "token/s")
            yield told(f"{label}: first token, median", outcome["ttft_median_s"] * 1e3, "ms")
        share = report["cached_share"]
        yield at_least("cached tokens of those shared", share, "", few_shot.TARGET_CACHED_SHARE)
        yield told("times as fast with the cache", report["speedup"], "")
        same = report["same_texts"] / report["requests"]
        yield told("texts that are the same without it", same, "")


async def _report(rig: Rig) -> Any:
    async with asyncio.timeout(MOST_SECONDS):
        return await few_shot.run(_arguments(rig))


def _arguments(rig: Rig) -> argparse.Namespace:
    sizes = rig.sizes
    return argparse.Namespace(
        model=str(rig.model_folder),
        dtype="auto",
        requests=sizes.few_shot_requests,
        concurrency=sizes.few_shot_requests,
        prefix_len=sizes.few_shot_prefix_len,
        max_tokens=sizes.few_shot_max_tokens,
        seed=1,
        data=few_shot.DEFAULT_DATA,
        server_flags=["--device", "cpu"] if rig.is_dry else ["--config", str(GPU_SETTINGS)],
    )
