"""Folders in the cache appear whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from radixserve.errors import ModelLoadError
from radixserve.models.cache_folder import (
    MANIFEST_NAME,
    cache_folder,
    is_complete,
    models_folder,
    new_folder,
)


def write_folder(target: Path, text: str = "{}") -> None:
    with new_folder(target) as folder:
        (folder / "config.json").write_text(text, encoding="utf-8")
        (folder / "model.safetensors").write_bytes(bytes(100_000))


def test_the_setting_moves_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RADIXSERVE_CACHE", str(tmp_path / "elsewhere"))
    assert models_folder() == tmp_path / "elsewhere" / "models"

    monkeypatch.delenv("RADIXSERVE_CACHE")
    assert cache_folder() == Path.home() / ".cache" / "radixserve"


def test_a_finished_folder_is_complete_and_readable_by_all(tmp_path: Path) -> None:
    target = tmp_path / "models" / "m"

    write_folder(target)

    assert is_complete(target)
    assert os.listdir(target.parent) == ["m"]
    assert stat.S_IMODE(target.stat().st_mode) == 0o755
    assert {stat.S_IMODE(path.stat().st_mode) for path in target.iterdir()} == {0o644}


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    target = tmp_path / "m"

    def write_half() -> None:
        with new_folder(target) as folder:
            (folder / "config.json").write_text("{}", encoding="utf-8")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()

    assert os.listdir(tmp_path) == []


def test_a_failure_keeps_the_old_folder(tmp_path: Path) -> None:
    target = tmp_path / "m"
    write_folder(target, "old")

    with pytest.raises(ValueError, match="stop"), new_folder(target):
        raise ValueError("stop")

    assert (target / "config.json").read_text(encoding="utf-8") == "old"
    assert is_complete(target)


def test_a_new_folder_replaces_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "m"
    write_folder(target, "old")
    (target / "leftover").touch()

    write_folder(target, "new")

    assert (target / "config.json").read_text(encoding="utf-8") == "new"
    assert not (target / "leftover").exists()
    assert os.listdir(tmp_path) == ["m"]


def test_whoever_finishes_second_accepts_the_folder_of_the_first(tmp_path: Path) -> None:
    target = tmp_path / "m"

    with new_folder(target) as folder:
        (folder / "config.json").write_text("second", encoding="utf-8")
        write_folder(target, "first")

    assert is_complete(target)
    assert os.listdir(tmp_path) == ["m"]


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", MANIFEST_NAME])
def test_a_folder_that_lost_a_file_is_not_complete(name: str, tmp_path: Path) -> None:
    target = tmp_path / "m"
    write_folder(target)

    (target / name).unlink()

    assert not is_complete(target)


def test_a_truncated_or_edited_file_makes_the_folder_incomplete(tmp_path: Path) -> None:
    write_folder(tmp_path / "short")
    (tmp_path / "short" / "model.safetensors").write_bytes(bytes(99_999))
    write_folder(tmp_path / "edited")
    (tmp_path / "edited" / "config.json").write_text("[]", encoding="utf-8")

    assert not is_complete(tmp_path / "short")
    assert not is_complete(tmp_path / "edited")


@pytest.mark.parametrize(
    "manifest", ["", "[]", "{}", '{"format": 1}', '{"format": 0, "files": {}}']
)
def test_a_broken_manifest_is_not_complete(manifest: str, tmp_path: Path) -> None:
    (tmp_path / MANIFEST_NAME).write_text(manifest, encoding="utf-8")

    assert not is_complete(tmp_path)


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="No space left"), new_folder(tmp_path / "m"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    assert os.listdir(tmp_path) == []


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(ModelLoadError, match="RADIXSERVE_CACHE"):
        write_folder(tmp_path / "file" / "models" / "m")
