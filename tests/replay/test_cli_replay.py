from __future__ import annotations

import json
import struct
import sys
from typing import TYPE_CHECKING

import pytest

from radixserve.cli.main import main
from radixserve.errors import ConfigError
from radixserve.replay.capacity import parse_capacity
from tests.replay.tiny_traces import mooncake_rows, write_rows

if TYPE_CHECKING:
    from pathlib import Path

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "tiny.jsonl", mooncake_rows())


def test_a_study_prints_a_table_with_the_optimum(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(trace), "--blocks", "2", "100%"]) == 0

    out = capsys.readouterr().out
    # Whole blocks: 0 1 | 0 1 3 | 5 | 0 1 3, of which 0 1 3 5 are distinct.
    assert "9 whole blocks of 512 tokens, 4 of them distinct" in out
    rows = [line.split() for line in out.splitlines()]
    full = next(row for row in rows if row[:2] == ["lru", "4"])
    assert full[2:8] == ["2,048", "55.6", "%", "100.0", "%", "100.0"]
    assert sum(row[:1] == ["(optimum)"] for row in rows) == 2


def test_json_has_every_run_and_the_optimum(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.json"

    assert main(["replay", str(trace), "--blocks", "1", "4", "--json", str(path)]) == 0

    report = json.loads(path.read_text())
    assert report["trace"]["unique_blocks"] == 4
    assert [run["capacity"] for run in report["runs"]] == [1, 4]
    assert report["runs"][1]["hits"] == 5
    assert report["runs"][1]["percent_of_infinite"] == 100.0
    assert report["optimum"][1]["hits"] == 5


def test_the_plot_is_a_png_of_sensible_size(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "plot.png"

    assert main(["replay", str(trace), "--blocks", "1", "2", "4", "--plot", str(path)]) == 0

    data = path.read_bytes()
    width, height = struct.unpack(">II", data[16:24])
    assert data.startswith(PNG_MAGIC)
    assert (width, height) == (1200, 750)
    assert 10_000 < len(data) < 1_000_000


def test_without_matplotlib_the_plot_is_refused_before_the_work(
    trace: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    path = tmp_path / "plot.png"

    assert main(["replay", str(trace), "--blocks", "1", "--plot", str(path)]) == 2

    captured = capsys.readouterr()
    assert "pip install 'radixserve[plot]'" in captured.err
    assert captured.out == ""


def test_a_served_trace_has_waits_and_first_tokens(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.json"
    command = ["replay", str(trace), "--blocks", "8", "--mode", "serve", "--json", str(path)]

    assert main([*command, "--kv-bytes-per-token", "131072"]) == 0

    out = capsys.readouterr().out
    assert "TTFT p50" in out
    assert "GiB" in out
    run = json.loads(path.read_text())["runs"][0]
    assert run["finished"] == 4
    assert run["preemptions"] == 0
    assert 0 < run["ttft"]["p50"] <= run["ttft"]["max"]
    assert 0 < run["cached_tokens"] < run["prompt_tokens"]


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--blocks", "many"], "--blocks takes numbers"),
        (["--blocks", "1", "--policy", "no-such-policy"], "no-such-policy"),
        (["--blocks", "1", "--order", "no-such-order"], "no-such-order"),
        (["--blocks", "1", "--block-size", "100"], "multiple of the trace's 512"),
        (["--blocks", "1", "--json", "/no/such/folder/x.json"], "cannot write"),
        (["--blocks", "1", "--plot", "/no/such/folder/x.png"], "cannot write"),
        (["--blocks", "1", "--mode", "serve", "--scale", "3"], "must divide"),
    ],
)
def test_a_wrong_setting_is_one_line(
    trace: Path, capsys: pytest.CaptureFixture[str], flags: list[str], why: str
) -> None:
    assert main(["replay", str(trace), *flags]) == 2

    complaint = capsys.readouterr().err.splitlines()[-1]
    assert complaint.startswith("radixserve: ")
    assert why in complaint


def test_a_malformed_trace_is_one_line_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = write_rows(tmp_path / "bad.jsonl", [*mooncake_rows(), {"hash_ids": []}])

    assert main(["replay", str(trace), "--blocks", "1"]) == 2

    assert "bad.jsonl, line 5: timestamp must be a number" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "blocks"),
    [("1708", 1708), ("1%", 1708), ("10%", 17_089), ("50%", 85_449), ("0.0001%", 1)],
)
def test_a_capacity_is_blocks_or_a_share_rounded_down(text: str, blocks: int) -> None:
    assert parse_capacity(text, 170_899) == blocks


@pytest.mark.parametrize("text", ["0", "-3", "0%", "-1%", "x", "", "%", "1.5", "nan%", "inf%"])
def test_what_is_no_capacity_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--blocks takes numbers from 1 on"):
        parse_capacity(text, 100)
