"""Model folders that radixserve made itself: where they lie and how they are written and checked.

$RADIXSERVE_CACHE or ~/.cache/radixserve
  models/
    smollm2-135m-instruct/       a complete model folder
      radixserve-manifest.json   its files' sizes and checksums; written last
    .smollm2-135m-instruct-x7k/  being written; renamed when complete
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from radixserve.errors import ModelLoadError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from radixserve.models.progress import Progress

MANIFEST_NAME = "radixserve-manifest.json"
FORMAT_VERSION = 1
"""Raised when a conversion changes, so that folders made by an older one are made anew."""

_CHUNK_BYTES = 1 << 20
_CHECKSUM_EVERY_TIME_BYTES = 1 << 16


def cache_folder() -> Path:
    """Return the folder that holds everything radixserve downloads or converts."""
    setting = os.environ.get("RADIXSERVE_CACHE")
    return Path(setting).expanduser() if setting else Path.home() / ".cache" / "radixserve"


def models_folder() -> Path:
    """Return the folder under `cache_folder` that holds one folder for each model."""
    return cache_folder() / "models"


def file_sha256(path: Path, *, progress: Progress | None = None) -> str:
    """Return the file's SHA-256 in hex. Complexity: one read of the file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            if progress is not None:
                progress.advance(len(chunk))
    return digest.hexdigest()


def write_manifest(folder: Path) -> None:
    """Record the size and checksum of every file in `folder`."""
    files = {
        path.name: {"size": path.stat().st_size, "sha256": file_sha256(path)}
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name != MANIFEST_NAME
    }
    manifest = {"format": FORMAT_VERSION, "files": files}
    (folder / MANIFEST_NAME).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def is_complete(folder: Path) -> bool:
    """Whether `folder` holds what its manifest lists.

    Sizes are compared for every file, checksums only for small ones, so that a start need not
    read the weights twice.
    """
    try:
        manifest = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
        return manifest["format"] == FORMAT_VERSION and all(
            _is_as_listed(folder / name, entry) for name, entry in manifest["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _is_as_listed(path: Path, entry: dict[str, object]) -> bool:
    size = path.stat().st_size
    if size != entry["size"]:
        return False
    return size > _CHECKSUM_EVERY_TIME_BYTES or file_sha256(path) == entry["sha256"]


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Give a temporary folder beside `target` that becomes `target` when the block ends well.

    The manifest is written by this function. A reader sees the old folder, the new one or, for the
    moment of the exchange, none, but never a half-written one; when the block raises, nothing is
    left behind.

    Raises:
        ModelLoadError: the cache folder cannot be written, or not to the end.
    Mutates: replaces `target`.
    """
    with _readable_os_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        with _readable_os_errors(target):
            yield staging
            _make_readable(staging)
            write_manifest(staging)
            _replace(staging, target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@contextlib.contextmanager
def _readable_os_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ModelLoadError(
            f"cannot write the model folder {target}: {error.strerror or error}; "
            "set RADIXSERVE_CACHE to a folder that can be written"
        ) from error


def _make_readable(folder: Path) -> None:
    # mkdtemp and some writers leave 0700 and 0600; a model is meant to be shared by users.
    folder.chmod(0o755)
    for path in folder.iterdir():
        path.chmod(0o755 if path.is_dir() else 0o644)


def _replace(staging: Path, target: Path) -> None:
    if target.exists():
        graveyard = Path(tempfile.mkdtemp(prefix=f".{target.name}-old-", dir=target.parent))
        with contextlib.suppress(FileNotFoundError):
            target.rename(graveyard / target.name)
        shutil.rmtree(graveyard, ignore_errors=True)
    try:
        staging.rename(target)
    except OSError:
        # Another process finished the same folder between our check and our rename.
        if not is_complete(target):
            raise
