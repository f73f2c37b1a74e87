"""`radixserve batch run`, as a process: exit codes, resuming, order, estimate."""

from __future__ import annotations

import asyncio
import json
import random
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from radixserve.config import HttpConfig, KeyConfig
from tests.batch.conftest import ENGINE_FLAGS, command, start_command
from tests.batch.lines import few_shot, ids, line, records, write
from tests.kit.engines import until

if TYPE_CHECKING:
    from pathlib import Path

    from radixserve.engine.async_engine import AsyncEngine
    from tests.batch.conftest import Serve

CHAT = [{"role": "user", "content": "the parrot said"}]
OF_EVERY_ROUTE = [
    line("a", "Once upon a time", max_tokens=5),
    line("b", [[5, 6], [7]], max_tokens=3, n=2, logprobs=2),
    line("c", url="/v1/chat/completions", messages=CHAT, max_tokens=6, temperature=0),
    line("d", url="/v1/responses", input="the parrot", max_output_tokens=16, temperature=0),
    line("e", url="/v1/messages", messages=CHAT, max_tokens=6, temperature=0),
    line("f", "Once", max_tokens=10**6),
    line("g", "Once", colour="blue"),
    line("h", url="/v1/messages", messages=[], max_tokens=1),
    line("i", "Once", model="another"),
]
CHANGING = {"id", "created", "created_at", "completed_at", "item_id", "request_id"}


def settled(value: Any) -> Any:
    """Return an answer without what differs from call to call."""
    if isinstance(value, dict):
        return {
            name: settled(inner)
            for name, inner in value.items()
            if name not in CHANGING and "cache" not in name and name != "input_tokens"
        }
    if isinstance(value, list):
        return [settled(inner) for inner in value]
    return round(value, 4) if isinstance(value, float) else value


async def test_answers_are_those_of_the_routes(
    serve: Serve, model_folder: Path, tmp_path: Path
) -> None:
    source, output = write(tmp_path / "in.jsonl", OF_EVERY_ROUTE), tmp_path / "out.jsonl"
    code, _ = await command(
        source, "-o", output, "--model", model_folder, *ENGINE_FLAGS, "--dtype", "float32"
    )
    assert code == 1
    found = {record["custom_id"]: record["response"] for record in records(output)}
    url = await serve(HttpConfig())
    async with aiohttp.ClientSession(url) as session:
        for text in OF_EVERY_ROUTE:
            asked = json.loads(text)
            async with session.post(asked["url"], json=asked["body"]) as response:
                answer = found[asked["custom_id"]]
                assert answer["status_code"] == response.status
                assert settled(answer["body"]) == settled(await response.json())
    good = [name for name, answer in found.items() if answer["status_code"] == 200]
    assert sorted(good) == ["a", "b", "c", "d", "e"]


async def test_a_server_elsewhere_answers_the_same_file(
    engine: AsyncEngine, serve: Serve, tmp_path: Path
) -> None:
    url = await serve(HttpConfig(keys=KeyConfig(api_keys=("k",))))
    source = write(tmp_path / "in.jsonl", few_shot(5, 6))
    output = tmp_path / "out.jsonl"
    flags = (source, "-o", output, "--url", f"{url}/v1", "--api-key", "k", "--ordered")
    code, said = await command(*flags)
    assert (code, sorted(ids(output))) == (0, sorted(ids_of(source)))
    assert ids(output) == ids_of(source)
    assert "30 lines: 30 done, 0 failed" in said
    asked = engine.stats().prompt_tokens
    code, said = await command(*flags)
    assert (code, engine.stats().prompt_tokens) == (0, asked)
    assert "(30 by an earlier run)" in said


def ids_of(source: Path) -> list[str]:
    return [json.loads(text)["custom_id"] for text in source.read_text().splitlines()]


async def test_failures_can_be_run_again(serve: Serve, tmp_path: Path) -> None:
    url = await serve(HttpConfig())
    source = write(tmp_path / "in.jsonl", [line("a"), line("b", colour="blue"), line("c")])
    output = tmp_path / "out.jsonl"
    assert (await command(source, "-o", output, "--url", url))[0] == 1
    write(source, [line("a"), line("b"), line("c")])
    code, said = await command(source, "-o", output, "--url", url)
    assert (code, "1 failed" in said) == (1, True)
    code, said = await command(source, "-o", output, "--url", url, "--retry-failed")
    assert (code, "3 done, 0 failed" in said) == (0, True)
    assert sorted(ids(output)) == ["a", "b", "c"]


async def test_too_many_failures_end_the_run(serve: Serve, tmp_path: Path) -> None:
    url = await serve(HttpConfig())
    source = write(tmp_path / "in.jsonl", [line(f"{i}", model="no") for i in range(200)])
    output = tmp_path / "out.jsonl"
    flags = (source, "-o", output, "--url", url, "--concurrency", "4", "--max-failures", "10")
    code, said = await command(*flags)
    assert code == 1
    assert "given up: more than 10 failures" in said
    assert 11 <= len(records(output)) <= 14


@pytest.mark.parametrize("order", ["prefix", "file"])
async def test_the_order_is_that_asked_for(
    serve: Serve, engine: AsyncEngine, tmp_path: Path, order: str
) -> None:
    url = await serve(HttpConfig())
    source = write(tmp_path / "in.jsonl", few_shot(4, 4, seed=1))
    output = tmp_path / "out.jsonl"
    await command(source, "-o", output, "--url", url, "--concurrency", "1", "--order", order)
    expected = ids_of(source)
    assert (ids(output) == expected) == (order == "file")
    groups = [each.partition("-")[0] for each in ids(output)]
    if order == "prefix":
        assert groups == sorted(groups)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.jsonl", "-o", "out.jsonl"], "cannot read absent.jsonl"),
        (["in.jsonl"], "say with -o where the results go"),
        (["in.jsonl", "-o", "in.jsonl"], "the results would be written to the input"),
        (["in.jsonl", "-o", "no/out.jsonl"], "cannot write no/out.jsonl"),
        (["packed.jsonl", "-o", "out.jsonl"], "packed.jsonl is packed with gzip"),
        (["in.jsonl", "-o", "out.jsonl", "--model", "no-folder/x.gguf"], "no-folder"),
        (["in.jsonl", "-o", "out.jsonl", "--url", "http://127.0.0.1:9"], "cannot reach http"),
        (["in.jsonl", "-o", "out.jsonl", "--num-blocks", "0"], "num_blocks must be >= 1"),
    ],
)
def test_where_nothing_can_be_run_the_exit_code_is_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from radixserve.cli.main import main

    monkeypatch.chdir(tmp_path)
    write(tmp_path / "in.jsonl", [line("a")])
    (tmp_path / "packed.jsonl").write_bytes(b"\x1f\x8b\x08")
    assert main(["batch", "run", *arguments]) == 2
    assert message in capsys.readouterr().err


async def test_a_wrong_key_is_told_before_every_line_fails(serve: Serve, tmp_path: Path) -> None:
    url = await serve(HttpConfig(keys=KeyConfig(api_keys=("k",))))
    source = write(tmp_path / "in.jsonl", [line("a")])
    output = tmp_path / "out.jsonl"
    code, said = await command(source, "-o", output, "--url", url, "--api-key", "wrong")
    assert (code, "refuses the API key" in said, output.read_bytes()) == (2, True, b"")


async def test_an_estimate_tells_what_a_run_will_find(
    engine: AsyncEngine, serve: Serve, model_folder: Path, tmp_path: Path
) -> None:
    lines = [*few_shot(6, 5), line("wrong", colour="blue"), "{bad"]
    source = write(tmp_path / "in.jsonl", lines)
    code, said = await command(source, "--dry-run", "--model", model_folder)
    assert code == 0
    found = {
        parts[0].strip(): int(parts[1].replace(",", ""))
        for text in said.splitlines()
        if len(parts := text.rsplit("  ", 1) if "at most" not in text else ["", "0"]) == 2
        and parts[1].replace(",", "").isdigit()
    }
    assert found["lines"] == 32
    assert found["to be refused"] == found["no requests"] == 1
    url = await serve(HttpConfig())
    await command(source, "-o", tmp_path / "out.jsonl", "--url", url, "--concurrency", "1")
    stats = engine.stats()
    assert found["prompt tokens"] == stats.prompt_tokens
    # A prompt's last block is not full, and goes with its request.
    more = stats.prompt_tokens - stats.cached_tokens - found["to be computed"]
    assert 0 <= more < 6 * stats.block_size


async def kill_and_resume(
    source: Path, output: Path, flags: tuple[object, ...], *, kills: int, seed: int
) -> None:
    """Kill a run again and again, each time after some more results; then let it end."""
    rng = random.Random(seed)
    count = len(ids_of(source))
    for kill in range(1, kills + 1):
        process = await start_command(source, "-o", output, "--quiet", *flags)
        target = count * kill // (kills + 1) - rng.randrange(count // (2 * kills + 2))
        await until(lambda: process.returncode is not None or num_lines(output) >= target)  # noqa: B023
        await asyncio.sleep(rng.uniform(0.0, 0.01))
        assert process.returncode is None, "it ended before it could be killed"
        process.kill()
        await process.communicate()
        if kill % 2:  # as a kill in the middle of a write would leave it
            with output.open("ab") as file:
                file.write(b'{"id":"batch_req_1","custom_id":"g0-')
    assert num_lines(output) < count
    code, said = await command(source, "-o", output, *flags)
    assert (code, f"{count} done, 0 failed" in said) == (0, True), said


def num_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.parametrize(
    ("num_groups", "per_group"),
    [
        pytest.param(30, 10, id="300"),
        pytest.param(250, 20, id="5000", marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
    ],
)
async def test_a_run_that_is_killed_three_times_loses_and_repeats_nothing(
    model_folder: Path, tmp_path: Path, num_groups: int, per_group: int
) -> None:
    source = write(tmp_path / "in.jsonl", few_shot(num_groups, per_group, head_words=30))
    output = tmp_path / "out.jsonl"
    flags = ("--model", model_folder, *ENGINE_FLAGS)
    await kill_and_resume(source, output, flags, kills=3, seed=num_groups)
    assert sorted(ids(output)) == sorted(ids_of(source))
    assert all(record["response"]["status_code"] == 200 for record in records(output))


async def test_an_interrupt_says_how_to_go_on(serve: Serve, tmp_path: Path) -> None:
    url = await serve(HttpConfig())
    lines = [line(f"{i}", max_tokens=200, ignore_eos=True) for i in range(100)]
    source, output = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    process = await start_command(source, "-o", output, "--url", url)
    await until(lambda: num_lines(output) >= 3)
    process.send_signal(2)
    _, said = await process.communicate()
    assert process.returncode == 130
    assert b"the same command goes on from here" in said
    assert 3 <= len(records(output)) < 100
