"""`radixserve bench`, as a process: against the real server, another kind of server, an engine."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from radixserve import kernels
from radixserve.bench.http_target import open_session
from radixserve.bench.probe import IdSupport, find_model, probe_ids
from radixserve.cli.main import main
from radixserve.errors import ConfigError
from tests.bench.conftest import IDS, REPO, bench

if TYPE_CHECKING:
    from pathlib import Path

    from tests.bench.conftest import ServeApp

CHAT = ("--dataset-name", "multi-turn", "--multi-turn-num-conversations", "3")
SMALL_CHAT = (
    *CHAT,
    *("--multi-turn-num-turns", "3", "--multi-turn-system-len", "12"),
    *("--multi-turn-user-len", "6", "--multi-turn-output-len", "5"),
)
SMALL_RANDOM = (
    *("--dataset-name", "random", "--num-prompts", "6"),
    *("--random-input-len", "20", "--random-output-len", "4", "--random-prefix-len", "40"),
)


async def serve_result(url: str, tmp_path: Path, *arguments: Any) -> dict[str, Any]:
    """Run `bench serve` and return its file; nothing may have failed."""
    path = tmp_path / "result.json"
    flags = ("--base-url", url, "--save-result", path, "--save-detailed")
    code, out, err = await bench("serve", *flags, *arguments)
    assert (code, "Successful requests:" in out) == (0, True), out + err
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


async def test_a_conversation_in_ids_finds_its_own_answers_in_the_cache(
    url: str, tmp_path: Path
) -> None:
    found = await serve_result(url, tmp_path, *SMALL_CHAT, *IDS, "--max-concurrency", "2")
    assert (found["completed"], found["failed"], found["prompt_form"]) == (9, 0, "ids")
    assert found["model_id"] == "tiny"
    assert (found["total_output_tokens"], found["preemptions"]) == (45, 0)
    sizes = dict(
        zip(
            found["names"], zip(found["input_lens"], found["cached_lens"], strict=True), strict=True
        )
    )
    for session in range(3):
        for turn in (1, 2):
            before, _ = sizes[f"chat/{session}#{turn - 1}"]
            _, cached = sizes[f"chat/{session}#{turn}"]
            # The last token of an answer has no KV yet; the four before it are in the cache.
            assert cached == before + 4
    assert found["cached_tokens"] + found["computed_tokens"] == found["total_input_tokens"]
    assert found["hit_rate"] > 0.5


@pytest.mark.parametrize(
    ("flags", "form"), [(("--endpoint", "chat"), "chat"), (("--prompt-form", "text"), "text")]
)
async def test_conversations_can_be_held_in_words(
    flags: tuple[str, ...], form: str, url: str, tmp_path: Path
) -> None:
    found = await serve_result(url, tmp_path, *SMALL_CHAT, *flags)
    assert (found["completed"], found["prompt_form"]) == (9, form)
    assert found["total_output_tokens"] == 45
    assert found["hit_rate"] > 0.3


async def test_a_flush_makes_the_same_prompts_cold_again(url: str, tmp_path: Path) -> None:
    flags = (*SMALL_RANDOM, *IDS, "--max-concurrency", "1")
    cold = await serve_result(url, tmp_path, *flags)
    assert cold["cached_tokens"] == 5 * 40
    assert cold["total_input_tokens"] == 6 * 60
    warm = await serve_result(url, tmp_path, *flags)
    assert warm["cached_tokens"] == 6 * 59
    flushed = await serve_result(url, tmp_path, *flags, "--flush-cache")
    assert flushed["cached_lens"] == cold["cached_lens"]
    assert flushed["generated_texts"] == cold["generated_texts"]


async def test_the_picture_is_drawn_and_the_file_has_the_percentiles_asked_for(
    url: str, tmp_path: Path
) -> None:
    picture = tmp_path / "latency.png"
    found = await serve_result(
        url,
        tmp_path,
        *SMALL_RANDOM,
        *IDS,
        *("--request-rate", "200", "--metric-percentiles", "50,90", "--plot", picture),
        *("--goodput", "e2el:600000"),
    )
    data = picture.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", data[16:24]) == (1500, 1050)
    assert found["p50_ttft_ms"] == pytest.approx(found["median_ttft_ms"])
    assert found["p50_ttft_ms"] <= found["p90_ttft_ms"]
    assert found["request_goodput"] == found["request_throughput"] > 0


async def test_ids_that_the_server_does_not_have_are_sent_as_words(url: str) -> None:
    async with open_session(url) as session:
        assert await find_model(session, url) == "tiny"
        assert await probe_ids(session, "tiny", (3, 320)) == IdSupport(takes=True, gives=True)
        assert await probe_ids(session, "tiny", (300, 20_000)) == IdSupport(False, False)


async def test_the_same_load_runs_in_an_engine_in_this_process(
    model_folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "result.json"
    code, out, err = await bench(
        "throughput",
        *("--model", model_folder, "--num-blocks", "4096", "--block-size", "1"),
        *(*SMALL_CHAT, "--save-result", path, "--save-detailed", "--seed", "3"),
    )
    assert code == 0, out + err
    assert "Throughput Benchmark Result" in out
    found = json.loads(path.read_text(encoding="utf-8"))
    assert (found["completed"], found["total_output_tokens"]) == (9, 45)
    assert found["cached_tokens"] == sum(found["cached_lens"]) > 0
    sizes = dict(zip(found["names"], found["input_lens"], strict=True))
    seconds_and_thirds = sum(sizes[f"chat/{i}#{turn}"] + 4 for i in range(3) for turn in (0, 1))
    assert found["cached_tokens"] == 2 * 12 + seconds_and_thirds


# A server that knows only what OpenAI's does


def plain_server(*, refusing: frozenset[int] = frozenset()) -> web.Application:
    """A server of text completions that tells no hits and has no metrics.

    Args:
        refusing: Which of the calls it answers with 429, counted from 0.
    """
    calls = 0

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "plain"}]})

    async def completions(request: web.Request) -> web.StreamResponse:
        nonlocal calls
        body = await request.json()
        if not isinstance(body["prompt"], str):
            return web.json_response({"error": {"message": "text, please"}}, status=400)
        calls += 1
        if calls - 1 in refusing:
            return web.json_response({"error": {"message": "busy"}}, status=429)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(body["max_tokens"]):
            await response.write(b'data: {"choices": [{"text": "x"}]}\n\n')
        await response.write(b"data: [DONE]\n\n")
        return response

    app = web.Application()
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/completions", completions)
    return app


async def test_a_server_that_tells_little_can_be_measured(serve_app: ServeApp) -> None:
    url = await serve_app(plain_server())
    flags = (*SMALL_RANDOM, "--flush-cache", "--percentile-metrics", "ttft")
    code, out, err = await bench("serve", "--base-url", f"{url}/v1", *flags)
    assert code == 0, out + err
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "Model: plain" in lines
    assert "Dataset, prompts as: random, text" in lines
    assert "Total generated tokens: 24" in lines
    assert "Hit rate (%): not told" in lines
    assert "Preemptions: not told" in lines
    assert not any("TPOT" in line for line in lines)
    assert "the cache was not flushed: POST /cache/flush gave HTTP 404" in err


async def test_failures_are_counted_by_kind_and_in_the_exit_code(serve_app: ServeApp) -> None:
    url = await serve_app(plain_server(refusing=frozenset({2, 3})))
    code, out, _ = await bench("serve", "--base-url", url, *SMALL_RANDOM)
    assert code == 1
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert {"Successful requests: 4", "Failed requests: 2", "HTTP 429: 2"} <= set(lines)
    assert any("busy" in line for line in lines)


async def test_a_warm_up_that_fails_ends_the_run(serve_app: ServeApp) -> None:
    url = await serve_app(plain_server(refusing=frozenset({0})))
    code, out, err = await bench("serve", "--base-url", url, *SMALL_RANDOM)
    assert (code, out) == (2, "")
    assert "the warm-up request failed: HTTP 429" in err


async def test_a_server_without_a_model_is_named(serve_app: ServeApp) -> None:
    url = await serve_app(web.Application())
    async with open_session(url) as session:
        with pytest.raises(ConfigError, match="lists no model"):
            await find_model(session, url)
    async with open_session("http://127.0.0.1:9") as session:
        with pytest.raises(ConfigError, match="cannot reach"):
            await find_model(session, "http://127.0.0.1:9")


def test_a_client_of_a_server_loads_no_torch() -> None:
    code = "import sys, radixserve.bench.run; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=REPO, check=True
    )
    assert done.stdout == "False\n"


# Flags


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--dataset-name", "custom"), "needs --dataset-path"),
        (("--goodput", "ttft=500"), "ttft:500"),
        (("--percentile-metrics", "ttft,xyz"), "known are ttft,tpot,itl,e2el"),
        (("--metric-percentiles", "101"), "from 0 to 100"),
        (("--save-result", "absent/a.json"), "no folder absent"),
        (("--random-range-ratio", "1"), "range ratio"),
    ],
)
def test_a_wrong_flag_is_one_line_and_exit_code_2(
    flags: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "serve", "--base-url", "http://127.0.0.1:9", *flags]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_a_server_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", "--base-url", "http://127.0.0.1:9"]) == 2
    assert "cannot reach http://127.0.0.1:9" in capsys.readouterr().err


@pytest.mark.parametrize("action", ["serve", "throughput"])
def test_help_teaches_by_example(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["bench", action, "--help"])
    assert exit_.value.code == 0
    text = capsys.readouterr().out
    assert f"examples:\n  radixserve bench {action}" in text
    assert "w1 w2 w3 w4" in text


def test_names_of_datasets_may_be_written_with_underscores(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ("--dataset-name", "prefix_repetition", "--num-prompts", "2")
    assert main(["bench", "serve", "--base-url", "http://127.0.0.1:9", *flags]) == 2
    assert "10 prefixes need at least as many prompts; got 2" in capsys.readouterr().err


@pytest.mark.skipif(not kernels.is_available(), reason=kernels.why_not())
async def test_the_kernels_are_measured_on_the_shapes_of_a_model(
    model_folder: Path, tmp_path: Path
) -> None:
    result, picture = tmp_path / "kernels.json", tmp_path / "kernels.png"
    flags = ("--quick", "--model", model_folder, "--save-result", result, "--plot", picture)
    code, out, err = await bench("kernels", *flags)
    assert code == 0, err
    measured = json.loads(result.read_text(encoding="utf-8"))["kernels"]
    products = {"qkv", "output", "gate_up", "down", "head"}
    assert {each["name"] for each in measured} == {
        *products,
        *("decode", "shared", "prefill", "extend"),
    }
    assert {each["rows"] for each in measured if each["name"] in products} == {1, 32}
    assert len(out.splitlines()) == 2 + len(measured)
    for each in measured:
        assert each["seconds"] > 0
        assert each["of_floor"] == pytest.approx(max(each["of_memory"], each["of_peak"]))
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_bad_count_is_refused_before_anything_is_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "kernels", "--rows", "0"]) != 0
    assert "must be at least 1" in capsys.readouterr().err
