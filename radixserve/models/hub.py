"""Models on the Hugging Face hub: the local copy first, then the network, with short patience."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from radixserve.errors import ModelLoadError

if TYPE_CHECKING:
    from radixserve.models.progress import Progress

ASK_TIMEOUT_S = 4.0
"""How long the first question to the hub may take; a machine without a way out learns it soon."""

_WANTED = ["*.json", "*.safetensors", "*.jinja"]
_UNWANTED = ["*/*"]
"""Subfolders hold the same model in other formats."""


def download_snapshot(hub_id: str, folder: Path, progress: Progress) -> None:
    """Download the files of a model into `folder`.

    Raises:
        ModelLoadError: the hub cannot be reached, is switched off (HF_HUB_OFFLINE), or does not
            have the model.
    Mutates: adds files to `folder`.
    """
    _require_reachable(hub_id, progress)
    _download(hub_id, local_dir=folder)
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # the hub client's own bookkeeping


def hub_snapshot(hub_id: str, progress: Progress) -> Path:
    """Return the folder of a hub model: from the hub's own cache, else downloaded into it.

    Raises:
        ModelLoadError: the model is not cached and cannot be downloaded.
    """
    cached = _cached_snapshot(hub_id)
    if cached is not None:
        return cached
    _require_reachable(hub_id, progress)
    return _download(hub_id)


def _cached_snapshot(hub_id: str) -> Path | None:
    # The client's own question for a whole snapshot says no where it fetched only some files.
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        config = try_to_load_from_cache(hub_id, "config.json")
    except HFValidationError as error:
        raise ModelLoadError(f"'{hub_id}' cannot be a hub id: {_reason(error)}") from error
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    is_usable = (folder / "tokenizer.json").is_file() and any(folder.glob("*.safetensors"))
    return folder if is_usable else None


def _require_reachable(hub_id: str, progress: Progress) -> None:
    # One short question: the client's own retries take minutes where there is no route out.
    from huggingface_hub import HfApi

    progress.start(f"Asking the hub for {hub_id}", None)
    try:
        HfApi().model_info(hub_id, timeout=ASK_TIMEOUT_S)
    except Exception as error:
        raise ModelLoadError(f"the hub did not give {hub_id}: {_reason(error)}") from error
    finally:
        progress.finish()


def _download(hub_id: str, *, local_dir: Path | None = None) -> Path:
    # The client draws its own bars, one a file.
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(
            hub_id, local_dir=local_dir, allow_patterns=_WANTED, ignore_patterns=_UNWANTED
        )
    except Exception as error:
        raise ModelLoadError(f"downloading {hub_id} failed: {_reason(error)}") from error
    return Path(folder)


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
