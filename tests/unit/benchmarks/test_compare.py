"""`benchmarks.compare`: the ratio table, and servers that are started and ended."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from benchmarks.compare import Cell, format_rows, ratio_rows
from benchmarks.served_peer import Peer, serving

if TYPE_CHECKING:
    from pathlib import Path

MODELS = """
import json, os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Models(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")
    def log_message(self, *args):
        pass

print("pid", os.getpid(), "greeting", os.environ["GREETING"], flush=True)
HTTPServer(("127.0.0.1", int(sys.argv[1])), Models).serve_forever()
"""


def cell(
    server: str, round_: int, rate: float, *, concurrency: int = 8, ttft_ms: float = 100
) -> Cell:
    """One run of w1."""
    return Cell(
        server=server,
        workload="w1",
        concurrency=concurrency,
        round=round_,
        form="text",
        output_tokens_per_s=rate,
        ttft_ms=ttft_ms,
        ttft_p99_ms=2 * ttft_ms,
        tpot_ms=10.0,
        hit_rate=0.5,
        num_failed=1,
        duration_s=1.0,
    )


def test_ratios_are_medians_of_each_rounds_own_against_the_first_server() -> None:
    cells = [
        *(cell("a", round_, rate) for round_, rate in enumerate([100.0, 300.0, 120.0])),
        *(cell("b", round_, rate, ttft_ms=50) for round_, rate in enumerate([60.0, 10.0, 240.0])),
        cell("a", 0, 7.0, concurrency=1),
    ]
    assert list(ratio_rows(cells)) == [
        ["w1", "1", "a", "7.0", "1.00", "100", "1.00", "10.0", "1.00", "50.0%", "1", "0%"],
        ["w1", "8", "a", "120.0", "1.00", "100", "1.00", "10.0", "1.00", "50.0%", "3", "167%"],
        ["w1", "8", "b", "60.0", "0.60", "50", "2.00", "10.0", "1.00", "50.0%", "3", "383%"],
    ]


def test_rows_are_a_markdown_table() -> None:
    assert format_rows([["a", "bc"], ["def", ""]]) == "| a   | bc |\n|-----|----|\n| def |    |"


def test_a_command_may_begin_with_its_environment() -> None:
    peer = Peer.parse("p=A=1 B='x y' serve --port {port} --set c=d")
    assert peer.words(80) == ({"A": "1", "B": "x y"}, ["serve", "--port", "80", "--set", "c=d"])


@pytest.mark.parametrize("text", ["serve {port}", "name=serve", "=serve {port}"])
def test_a_server_without_a_name_or_a_port_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="name=command"):
        Peer.parse(text)


async def test_a_server_is_awaited_and_ended(tmp_path: Path) -> None:
    program, log = tmp_path / "models.py", tmp_path / "a.log"
    program.write_text(MODELS, encoding="utf-8")
    peer = Peer("a", f"GREETING=hello {sys.executable} {program} {{port}}")
    async with serving(peer, log=log, patience_s=60.0) as url:
        assert url.startswith("http://127.0.0.1:")
        _, pid, _, greeting = log.read_text(encoding="utf-8").split()
        assert greeting == "hello"
        os.kill(int(pid), 0)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


async def test_a_server_that_ends_says_why(tmp_path: Path) -> None:
    program = tmp_path / "fail.py"
    program.write_text("raise SystemExit('no such model')", encoding="utf-8")
    peer = Peer("a", f"{sys.executable} {program} {{port}}")
    with pytest.raises(RuntimeError, match="a has ended: no such model"):
        async with serving(peer, log=tmp_path / "a.log", patience_s=60.0):
            pass
