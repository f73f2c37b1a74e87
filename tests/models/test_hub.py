"""Downloading from a hub: the real client against a small server that speaks the hub's protocol."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kit.tiny_model import write_tiny_model
from tests.kit.tiny_tokenizer import write_tiny_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).parents[2]
COMMIT = "a" * 40
HUB_ID = "some/model"


def hub_handler(folder: Path) -> type[http.server.BaseHTTPRequestHandler]:
    """Return a handler that serves `folder` as the hub serves a model."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(has_body=True)

        def do_HEAD(self) -> None:
            self._answer(has_body=False)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

        def _answer(self, *, has_body: bool) -> None:
            path = self.path.partition("?")[0]
            name = path.rpartition("/")[2]
            if path.startswith(f"/api/models/{HUB_ID}/tree/"):
                self._send(json.dumps(tree(folder)).encode(), has_body=has_body)
            elif path.startswith(f"/api/models/{HUB_ID}"):
                self._send(json.dumps(info(folder)).encode(), has_body=has_body)
            elif path.startswith(f"/{HUB_ID}/resolve/") and (folder / name).is_file():
                self._send((folder / name).read_bytes(), has_body=has_body)
            else:
                self.send_error(404)

        def _send(self, body: bytes, *, has_body: bool) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", f'"{len(body)}-{self.path.rpartition("/")[2]}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.end_headers()
            if has_body:
                self.wfile.write(body)

    return Handler


def info(folder: Path) -> dict[str, object]:
    siblings = [{"rfilename": path.name} for path in folder.iterdir()]
    return {"id": HUB_ID, "modelId": HUB_ID, "sha": COMMIT, "siblings": siblings}


def tree(folder: Path) -> list[dict[str, object]]:
    return [
        {"type": "file", "path": path.name, "size": path.stat().st_size, "oid": path.name}
        for path in folder.iterdir()
    ]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[str]:
    """The address of a hub with one model, which has a file that nobody wants."""
    folder = write_tiny_tokenizer(write_tiny_model(tmp_path / "published"))
    (folder / "pytorch_model.bin").write_bytes(b"old format")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), hub_handler(folder))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def run_with_hub(code: str, address: str, tmp_path: Path, **settings: str) -> str:
    """Run `code` in a process of its own: the client reads its settings when it is imported."""
    environment = os.environ | {
        "HF_ENDPOINT": address,
        "HF_HOME": str(tmp_path / "hf"),
        "RADIXSERVE_CACHE": str(tmp_path / "cache"),
        **settings,
    }
    environment.pop("HF_HUB_OFFLINE", None)
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    return result.stdout + result.stderr


def test_a_hub_model_is_downloaded_once_and_only_what_is_needed(hub: str, tmp_path: Path) -> None:
    code = (
        "from radixserve.models.hub import hub_snapshot\n"
        "from radixserve.models.progress import SilentProgress\n"
        f"folder = hub_snapshot({HUB_ID!r}, SilentProgress())\n"
        "print(sorted(p.name for p in folder.iterdir()))\n"
        "from huggingface_hub import constants\n"
        "constants.HF_HUB_OFFLINE = True\n"
        f"print('again', hub_snapshot({HUB_ID!r}, SilentProgress()) == folder)\n"
    )

    output = run_with_hub(code, hub, tmp_path)

    assert "'config.json', 'model.safetensors'" in output
    assert "'tokenizer.json'" in output
    assert "pytorch_model.bin" not in output
    assert "again True" in output


def test_the_default_model_comes_from_the_hub_where_there_is_one(hub: str, tmp_path: Path) -> None:
    code = (
        "from radixserve.models import default_model\n"
        f"default_model.HUB_ID = {HUB_ID!r}\n"
        "folder = default_model.pull_default_model()\n"
        "print(default_model.is_complete(folder), sorted(p.name for p in folder.iterdir()))\n"
    )

    output = run_with_hub(code, hub, tmp_path, PIP_NO_INDEX="1")

    assert "True ['chat_template.jinja', 'config.json', 'generation_config.json'" in output
    assert "pytorch_model.bin" not in output
    assert ".cache" not in output


def test_an_unknown_model_is_named(hub: str, tmp_path: Path) -> None:
    code = (
        "from radixserve.models.hub import hub_snapshot\n"
        "from radixserve.models.progress import SilentProgress\n"
        "hub_snapshot('other/model', SilentProgress())\n"
    )

    output = run_with_hub(code, hub, tmp_path)

    assert "ModelLoadError: the hub did not give other/model: " in output
    assert "404" in output
