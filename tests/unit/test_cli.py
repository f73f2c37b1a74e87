"""The command line: what it understands, what it says, and how it fails."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from radixserve.cli.banner import Banner
from radixserve.cli.byte_count import format_byte_count, parse_byte_count
from radixserve.cli.flags import SERVER_GROUPS, add_setting_flags, config_from_args
from radixserve.cli.main import main, make_parser
from radixserve.cli.progress import RichProgress
from radixserve.config import CacheConfig, EngineConfig, HttpConfig, ModelConfig, ServerConfig
from radixserve.config_file import config_keys
from radixserve.errors import ConfigError

REPO = Path(__file__).parents[2]


def config_of(*arguments: str) -> ServerConfig:
    """The settings that these arguments of `serve` ask for."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_setting_flags(parser, SERVER_GROUPS)
    return config_from_args(parser.parse_args(arguments), SERVER_GROUPS)


# Flags and settings


def test_without_flags_the_defaults_are_served() -> None:
    assert config_of() == ServerConfig()


def test_flags_set_the_settings_they_are_named_after() -> None:
    config = config_of(
        *("--model", "./m", "--dtype", "float32", "--block-size", "32"),
        *("--kv-cache-memory-bytes", "2GiB", "--no-prefix-cache", "--port", "0"),
    )
    cache = CacheConfig(block_size=32, kv_cache_memory_bytes=2 << 30, prefix_cache=False)
    assert config == ServerConfig(
        engine=EngineConfig(model=ModelConfig(model="./m", dtype="float32"), cache=cache),
        http=HttpConfig(port=0),
    )


def test_every_setting_has_exactly_one_flag() -> None:
    keys = [flag.key for flags in SERVER_GROUPS.values() for flag in flags]
    assert sorted(keys) == sorted(config_keys())


def test_flags_win_over_set_and_set_wins_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text("[engine.cache]\nblock_size = 4\nnum_blocks = 40\nmemory_fraction = 0.4\n")
    config = config_of(
        *("--config", str(path), "--set", "engine.cache.num_blocks=50"),
        *("--set", "engine.cache.block_size=5", "--block-size", "6"),
    )
    assert config.engine.cache == CacheConfig(block_size=6, num_blocks=50, memory_fraction=0.4)


def test_flags_that_may_be_repeated_make_lists() -> None:
    http = config_of(
        *("--api-key", "a", "--api-key", "b", "--admin-api-key", "c", "--share-cache-across-keys"),
        *("--cors-origin", "https://example.org", "--access-log", "json"),
    ).http
    assert (http.keys.api_keys, http.keys.admin_api_keys) == (("a", "b"), ("c",))
    assert http.keys.share_cache
    assert http.cors_origins == ("https://example.org",)
    assert http.observe.access_log == "json"


@pytest.mark.parametrize("command", ["serve", "batch", "chat", "pull", "check"])
def test_help_teaches_by_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([command, "--help"])
    assert exit_.value.code == 0
    text = capsys.readouterr().out
    assert f"examples:\n  radixserve {command}" in text or "| radixserve chat" in text


def test_help_shows_the_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    words = " ".join(capsys.readouterr().out.split())
    assert "tokens a block (default: 16)" in words
    assert "port to listen on; 0 takes any free one (default: 8000)" in words


def test_abbreviated_flags_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        make_parser().parse_args(["serve", "--max-num-s", "4"])
    assert exit_.value.code == 2
    assert "--max-num-s" in capsys.readouterr().err


# Failing


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--block-size", "0"], "engine.cache.block_size must be from 1 to 1024; got 0"),
        (["--set", "engine.cache.blocks=1"], "engine.cache.blocks is not a setting; allowed here"),
        (["--set", "nonsense"], "an override is key=value"),
        (["--config", "absent.toml"], "cannot read the settings file absent.toml"),
        (["--api-key-file", "absent.txt"], "the key file absent.txt cannot be read as text"),
        (["--tls-cert", "a.pem"], "http.tls_cert must be given together with tls_key"),
        (["--tls-cert", "a.pem", "--tls-key", "b.pem"], "tls_cert a.pem and tls_key b.pem cannot"),
    ],
)
def test_a_wrong_setting_is_one_line_on_stderr_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.startswith("radixserve: ")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--attention-backend", "flashinfer"], "no NVIDIA GPU was found; use --attention-backend"),
        (["--device", "cuda"], "finds no NVIDIA GPU"),
        (["--device", "cpu", "--attention-backend", "flashinfer"], "on a CUDA device only"),
    ],
)
def test_a_gpu_that_is_not_there_is_one_line_before_any_model_is_looked_for(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)

    assert main(["serve", "--model", "absent-model", *arguments]) == 2

    captured = capsys.readouterr()
    assert message in captured.err
    assert "absent-model" not in captured.err
    assert captured.err.startswith("radixserve: ")
    assert captured.err.count("\n") == 1


def test_a_wrong_setting_ends_the_process_before_torch_is_loaded() -> None:
    code = (
        "import sys\nfrom radixserve.cli.main import main\n"
        "code = main(['serve', '--port', '70000'])\nprint(code, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=REPO, check=True
    )
    assert done.stdout == "2 False\n"


def test_the_package_can_be_run_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "radixserve", "--version"],
        capture_output=True,
        text=True,
        cwd=REPO,
        check=True,
    )
    assert done.stdout.startswith("radixserve ")


# Byte counts


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1048576", 1 << 20),
        ("2GiB", 2 << 30),
        ("500MB", 500_000_000),
        ("1.5 kib", 1536),
        ("7B", 7),
        ("1TiB", 1 << 40),
    ],
)
def test_a_byte_count_takes_decimal_and_binary_units(text: str, count: int) -> None:
    assert parse_byte_count(text) == count


@pytest.mark.parametrize("text", ["", "GiB", "2 GiBs", "-1", "1e9", "2G"])
def test_what_is_no_byte_count_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="2GiB, 500MB"):
        parse_byte_count(text)


def test_a_wrong_byte_count_names_its_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["serve", "--kv-cache-memory-bytes", "lots"])
    assert exit_.value.code == 2
    assert "argument --kv-cache-memory-bytes: a byte count is" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 40, "3.0 TiB")]
)
def test_a_byte_count_is_written_in_its_largest_unit(count: int, text: str) -> None:
    assert format_byte_count(count) == text


# The banner


def banner(url: str = "http://127.0.0.1:8000", *, needs_key: bool = False) -> Banner:
    """A banner of a small server."""
    return Banner(
        url=url,
        model="it's-small",
        dtype="float32",
        max_model_len=8192,
        kv_capacity_tokens=65536,
        num_blocks=4096,
        needs_key=needs_key,
    )


def test_the_banner_says_where_what_and_how_much() -> None:
    text = str(banner())
    assert "serves it's-small at http://127.0.0.1:8000/v1" in text
    assert "float32" in text
    assert "65,536 tokens in 4,096 blocks of 16" in text


def test_the_curl_line_survives_a_shell() -> None:
    words = shlex.split(banner().curl_line())
    assert words[:2] == ["curl", "http://127.0.0.1:8000/v1/chat/completions"]
    assert json.loads(words[-1])["model"] == "it's-small"


def test_the_curl_line_sends_a_key_without_showing_it() -> None:
    assert "Bearer $API_KEY" in banner(needs_key=True).curl_line()
    assert "Bearer" not in banner().curl_line()


def test_the_curl_line_of_a_server_on_all_addresses_names_one() -> None:
    assert "curl http://127.0.0.1:80/v1" in banner("http://0.0.0.0:80").curl_line()
    assert "curl http://[::1]:80/v1" in banner("http://[::]:80").curl_line()


# Progress


def test_progress_without_a_terminal_is_one_line_a_step(
    capsys: pytest.CaptureFixture[str],
) -> None:
    progress = RichProgress()
    progress.start("Converting", 3)
    progress.advance(3)
    progress.finish()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("Converting: ")
    assert captured.err.count("\n") == 1


# Scripts


@pytest.mark.parametrize("name", ["scripts/serve", "scripts/test", "scripts/check", ".ci/run"])
def test_scripts_are_executable_and_stop_at_the_first_error(name: str) -> None:
    path = REPO / name
    assert os.access(path, os.X_OK)
    assert "\nset -euo pipefail\n" in path.read_text()
    subprocess.run(["bash", "-n", str(path)], check=True)
