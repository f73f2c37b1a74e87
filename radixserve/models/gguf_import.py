"""A GGUF file becomes a model folder: config, safetensors in bfloat16, tokenizer."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import torch

from radixserve.errors import ModelLoadError
from radixserve.models.cache_folder import is_complete, models_folder, new_folder
from radixserve.models.gguf_config import generation_config, model_config
from radixserve.models.gguf_file import GGUFFile
from radixserve.models.gguf_tokenizer import write_tokenizer
from radixserve.models.progress import Progress, SilentProgress
from radixserve.models.safetensors_writer import SafetensorsWriter

if TYPE_CHECKING:
    from pathlib import Path


def import_gguf(path: Path, *, progress: Progress | None = None) -> Path:
    """Return the cached model folder made from the GGUF file at `path`, making it if need be.

    The folder is keyed by the file's place, size and modification time, so a file that changed is
    converted anew.

    Raises:
        ModelLoadError: the file is missing, is not GGUF, or holds something unsupported.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise ModelLoadError(f"{path} cannot be read: {error.strerror}") from error
    identity = f"{path.resolve()}|{status.st_size}|{status.st_mtime_ns}"
    key = hashlib.sha256(identity.encode()).hexdigest()[:12]
    target = models_folder() / f"{path.stem}-{key}"
    if not is_complete(target):
        with new_folder(target) as folder:
            convert_gguf(path, folder, progress or SilentProgress())
    return target


def convert_gguf(path: Path, folder: Path, progress: Progress) -> None:
    """Write the model in `path` into `folder`.

    Quantised weights are dequantised and rounded to bfloat16.

    Raises:
        ModelLoadError: the file is not GGUF or holds something unsupported.
    """
    progress.start(f"Reading {path.name}", None)
    try:
        file = GGUFFile(path)
        config = model_config(file)
        _write_json(folder / "config.json", config)
        _write_json(folder / "generation_config.json", generation_config(file))
        write_tokenizer(file, folder)
    finally:
        progress.finish()
    _convert_weights(file, folder, progress)


def _convert_weights(file: GGUFFile, folder: Path, progress: Progress) -> None:
    writer = SafetensorsWriter(folder)
    progress.start(f"Dequantising {file.path.name}", file.num_elements)
    try:
        for name, tensor in file.read_all():
            writer.add(name, tensor.to(torch.bfloat16))
            progress.advance(tensor.numel())
        writer.close()
    finally:
        progress.finish()


def _write_json(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
