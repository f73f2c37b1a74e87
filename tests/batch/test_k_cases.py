"""Kind k of the public bug reports retold as cases: files of requests.

Sources: K1 headroomlabs-ai/headroom PR#2316; K3 ENTERPILOT/GoModel PR#108; K5
SWE-agent/SWE-agent#1042.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from radixserve.config import HttpConfig
from tests.batch.conftest import command
from tests.batch.lines import few_shot, ids, line, records, write
from tests.batch.test_command import ids_of, kill_and_resume

if TYPE_CHECKING:
    from pathlib import Path

    from tests.batch.conftest import Serve


async def test_k1_a_line_that_is_no_request_hurts_no_other(serve: Serve, tmp_path: Path) -> None:
    url = await serve(HttpConfig())
    long = line("long", "a" * 5_000_000)
    lines = [
        line("first"),
        "[1,2]",
        "null",
        '{"custom_id":"a","body":"x"}',
        "{bad",
        "",
        long,
        line("last"),
    ]
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    output = tmp_path / "out.jsonl"
    code, said = await command(source, "-o", output, "--url", url)
    assert code == 1
    assert "7 lines: 2 done, 5 failed" in said
    found = records(output)
    assert len(found) == 7
    faults = {record["error"]["line"]: record for record in found if record["error"]}
    assert sorted(faults) == [2, 3, 4, 5]
    assert faults[4]["custom_id"] == "a"
    status = {
        record["custom_id"]: record["response"]["status_code"]
        for record in found
        if record["response"]
    }
    assert status == {"first": 200, "last": 200, "long": 400}
    code, said = await command(source, "-o", output, "--url", url, "--ordered")
    assert (code, len(records(output))) == (1, 7)
    assert ids(output) == ["first", "None", "None", "a", "None", "long", "last"]


async def test_k3_no_line_is_left_out_of_the_counts(serve: Serve, tmp_path: Path) -> None:
    url = await serve(HttpConfig())
    lines = [line(f"{i}") for i in range(8)]
    source = write(tmp_path / "in.jsonl", [*lines[:3], "{", *lines[3:], '{"custom_id": 1}'])
    output = tmp_path / "out.jsonl"
    code, said = await command(source, "-o", output, "--url", url)
    counts = re.search(r"(\d+) lines: (\d+) done, (\d+) failed", said)
    assert counts is not None
    assert [int(text) for text in counts.groups()] == [10, 8, 2]
    assert (code, len(records(output))) == (1, 10)


@pytest.mark.parametrize("text", ["", "\n\n  \n", "\ufeff", "\r\n"])
async def test_k3_a_file_without_requests_is_done_at_once(tmp_path: Path, text: str) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(text, newline="")
    code, said = await command(source, "-o", output)
    assert (code, output.read_bytes()) == (0, b"")
    assert "in.jsonl has no requests" in said


@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.slow)])
async def test_k5_a_run_that_is_killed_at_any_moment_can_be_gone_on_with(
    serve: Serve, tmp_path: Path, kills: int
) -> None:
    url = await serve(HttpConfig())
    source = write(tmp_path / "in.jsonl", few_shot(20 * kills, 5, head_words=10))
    output = tmp_path / "out.jsonl"
    await kill_and_resume(source, output, ("--url", url), kills=kills, seed=kills)
    assert sorted(ids(output)) == sorted(ids_of(source))
