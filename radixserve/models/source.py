"""A model's name becomes a folder on this machine."""

from __future__ import annotations

from pathlib import Path

from radixserve.config import DEFAULT_MODEL
from radixserve.errors import ModelLoadError
from radixserve.models.default_model import pull_default_model
from radixserve.models.gguf_import import import_gguf
from radixserve.models.hub import hub_snapshot
from radixserve.models.progress import Progress, SilentProgress


def resolve_model(name: str, *, progress: Progress | None = None) -> Path:
    """Return a folder with config.json, *.safetensors and tokenizer.json for the model `name`.

    Args:
        name: The default model's name, a folder, a .gguf file, or an id on the Hugging Face hub.
            What exists on this machine goes before the hub.
        progress: Told about downloads and conversions.
    Raises:
        ModelLoadError: there is no such model, it cannot be fetched, or its folder is incomplete.
    Mutates: the cache folder, where something must be downloaded or converted.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        folder = path
    elif path.suffix.lower() == ".gguf":
        folder = import_gguf(path, progress=progress)
    elif name == DEFAULT_MODEL:
        folder = pull_default_model(progress=progress)
    else:
        folder = _from_hub(name, progress or SilentProgress())
    _require_complete(folder)
    return folder


def _from_hub(name: str, progress: Progress) -> Path:
    try:
        return hub_snapshot(name, progress)
    except ModelLoadError as error:
        raise ModelLoadError(
            f"model '{name}' is not a folder or GGUF file here, not in the hub's cache, and "
            f"cannot be downloaded: {error}"
        ) from error


def _require_complete(folder: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            raise ModelLoadError(f"{folder} is not a model folder: {name} is missing")
    if not any(folder.glob("*.safetensors")):
        raise ModelLoadError(f"{folder} is not a model folder: it holds no *.safetensors file")
