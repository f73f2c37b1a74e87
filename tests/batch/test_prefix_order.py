"""What the order of requests is worth: prompt tokens that a small pool must compute."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from radixserve.batch.dispatch import HttpDispatch, open_session
from radixserve.batch.plan import make_order, plan_lines
from radixserve.batch.reader import LineFile
from radixserve.batch.report import BatchReport
from radixserve.batch.runner import RunOptions, run_lines
from radixserve.batch.writer import ResultFile
from radixserve.config import HttpConfig
from radixserve.errors import AuthenticationError
from radixserve.server.caller import ANYBODY
from radixserve.server.inner_door import InnerDoor, open_inner_door
from tests.batch.lines import few_shot, ids, write
from tests.kit.engines import assert_idle, engine_config
from tests.kit.running import running

if TYPE_CHECKING:
    from pathlib import Path

    from radixserve.batch.plan import OrderName

NUM_GROUPS, PER_GROUP = 24, 6


async def computed_tokens(folder: Path, model_folder: Path, name: OrderName) -> int:
    """Run one shuffled file over a pool that holds a quarter of its prefixes.

    Returns: the prompt tokens that were computed.
    """
    source_path = write(folder / "in.jsonl", few_shot(NUM_GROUPS, PER_GROUP, seed=5))
    config = engine_config(model_folder, num_blocks=64, max_num_seqs=4, max_num_batched_tokens=256)
    results, report = ResultFile(folder / f"{name}.jsonl"), BatchReport()
    with LineFile(source_path) as source:
        order = make_order(source, name)
        plan_lines(source, order, results, report)
        async with running(config) as engine, open_inner_door(engine, HttpConfig()) as door:
            with door.opened_for(ANYBODY) as headers:
                async with open_session(door.url, headers=headers) as session:
                    options = RunOptions(concurrency=4)
                    await run_lines(iter(order), HttpDispatch(session), results, report, options)
            stats = engine.stats()
            assert_idle(engine.core)
        order.close()
    results.close()
    assert len(ids(results.path)) == report.num_done == NUM_GROUPS * PER_GROUP
    assert report.tokens.computed == stats.prompt_tokens - stats.cached_tokens
    return report.tokens.computed


async def test_prefix_order_computes_less_than_half_of_what_the_files_order_does(
    tmp_path: Path, model_folder: Path
) -> None:
    in_file_order = await computed_tokens(tmp_path, model_folder, "file")
    in_prefix_order = await computed_tokens(tmp_path, model_folder, "prefix")
    assert 2 * in_prefix_order < in_file_order, (in_prefix_order, in_file_order)


def test_the_inner_door_lets_nobody_else_in() -> None:
    door = InnerDoor()
    with door.opened_for(ANYBODY) as headers:
        [token] = headers.values()
        assert door.caller_with(token) is ANYBODY
        for other in ("", token[:-1], token + "x"):
            with pytest.raises(AuthenticationError):
                door.caller_with(other)
    with pytest.raises(AuthenticationError):
        door.caller_with(token)
