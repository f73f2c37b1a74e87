"""The commands with the default model: what a user sees who follows the README."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest
import torch

from radixserve.cli import self_test
from radixserve.cli.main import main
from radixserve.config import AttentionConfig, EngineConfig
from radixserve.engine import precision
from radixserve.kernels import is_available

REPO = Path(__file__).parents[2]

pytestmark = pytest.mark.model


def test_check_finds_nothing_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--set", "engine.cache.num_blocks=64", "--dtype", "float32"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == ["ok"] * 8
    assert "from the cache and the same tokens" in lines[-2]


def with_backend(backend: Literal["auto", "reference", "flashinfer"]) -> EngineConfig:
    return EngineConfig(attention=AttentionConfig(backend=backend))


def test_check_tells_the_precision_of_the_backend_that_is_asked_for() -> None:
    assert "native kernels" not in str(self_test.precision(with_backend("reference")))
    if is_available():
        found = self_test.precision(with_backend("auto"))
        assert "bfloat16, which the native kernels" in str(found)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_check_says_that_there_is_no_gpu_before_a_model_is_loaded() -> None:
    found = self_test.precision(with_backend("flashinfer"))

    assert str(found).startswith("FAILED  dtype")
    assert "no NVIDIA GPU was found; use --attention-backend cpu" in found.detail


def test_check_tells_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "choose_device", lambda *_, **__: torch.device("cuda"))

    assert self_test.precision(with_backend("auto")).detail == "bfloat16, on the GPU"


def test_check_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert main(["check", "--model", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("FAILED  model")
    assert lines[-1] == "1 failed"


def test_a_served_model_can_be_chatted_with_and_stops_in_order(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "radixserve"]
    serve = [*command, "serve", "--port", "0", "--num-blocks", "64", "--api-key", "s3cret"]
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=log, text=True, cwd=REPO)
    assert server.stdout is not None
    try:
        url = server.stdout.readline().split()[-1]
        asked = subprocess.run(
            [*command, "chat", "--url", url, "--api-key", "s3cret", "--max-tokens", "8"],
            input="Say hello.\nAgain.\n",
            capture_output=True,
            text=True,
            cwd=REPO,
            check=True,
        )
    finally:
        server.terminate()
        server.communicate(timeout=60)
    assert server.returncode == 0, (tmp_path / "log").read_text()
    assert len(asked.stdout.splitlines()) >= 2
    reports = [line for line in asked.stderr.splitlines() if line.startswith("ttft")]
    assert len(reports) == 2
    assert reports[0].endswith(" 0 from cache")
    assert not reports[1].endswith(" 0 from cache")


def test_a_model_can_be_chatted_with_in_this_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, b"Say hello.\nAgain.\n")
    os.close(write_end)
    with open(read_end) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        code = main(
            ["chat", "--embedded", "--max-tokens", "4", "--set", "engine.cache.num_blocks=64"]
        )
    captured = capsys.readouterr()
    assert code == 0
    assert captured.out.strip()
    assert captured.err.count("from cache") == 2
