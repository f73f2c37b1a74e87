"""Which tensors a folder of safetensors files holds, and in which file each lies."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import safetensors
from safetensors import SafetensorError

from radixserve.errors import ModelLoadError
from radixserve.models.config import read_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import Tensor

INDEX_NAME = "model.safetensors.index.json"

_log = logging.getLogger(__name__)


class Checkpoint:
    """The weights in a model folder.

    With an index, the index decides what is read, and every file it names must be there. Without
    one, every *.safetensors file is read.

    Args:
        folder: The model folder.
    Raises:
        ModelLoadError: there are no weights, a file that the index names is missing, or two files
            hold the same tensor.
    Source: sglang PR #32279 (a shard that was missing on disk was skipped in silence).
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        index = folder / INDEX_NAME
        self._files = self._from_index(index) if index.is_file() else self._from_files()

    @property
    def names(self) -> frozenset[str]:
        """The tensors' names."""
        return frozenset(name for names in self._files.values() for name in names)

    def read_all(self) -> Iterator[tuple[str, Tensor]]:
        """Yield each tensor with its name, file by file.

        Raises:
            ModelLoadError: a file cannot be read or lacks a tensor that the index promises.
        """
        for file_name, names in self._files.items():
            path = self._folder / file_name
            try:
                with safetensors.safe_open(path, framework="pt") as file:
                    for name in names:
                        yield name, file.get_tensor(name)
            except (SafetensorError, OSError) as error:
                raise ModelLoadError(f"{path} cannot be read: {error}") from error

    def _from_index(self, index: Path) -> dict[str, list[str]]:
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ModelLoadError(f"{index} has no weight_map")
        files: dict[str, list[str]] = {}
        for name, file_name in weight_map.items():
            files.setdefault(str(file_name), []).append(name)
        missing = sorted(name for name in files if not (self._folder / name).is_file())
        if missing:
            raise ModelLoadError(
                f"{self._folder} lacks {', '.join(missing)}, named in {INDEX_NAME}; "
                "was the download interrupted?"
            )
        self._notice_extras({path.name for path in self._folder.glob("*.safetensors")} - set(files))
        return files

    def _from_files(self) -> dict[str, list[str]]:
        paths = sorted(self._folder.glob("*.safetensors"))
        # Mistral's own format lies beside the common one under this name, with other tensor names.
        extras = {path.name for path in paths if path.name.startswith("consolidated")}
        paths = [path for path in paths if path.name not in extras]
        if not paths:
            raise ModelLoadError(f"{self._folder} holds no *.safetensors file")
        self._notice_extras(extras)
        files = {path.name: _tensor_names(path) for path in paths}
        self._refuse_duplicates(files)
        return files

    def _notice_extras(self, extras: set[str]) -> None:
        if extras:
            _log.warning("%s: not read: %s", self._folder, ", ".join(sorted(extras)))

    def _refuse_duplicates(self, files: dict[str, list[str]]) -> None:
        first_file: dict[str, str] = {}
        for file_name, names in files.items():
            for name in names:
                other = first_file.setdefault(name, file_name)
                if other != file_name:
                    raise ModelLoadError(
                        f"{self._folder}: both {other} and {file_name} hold {name}"
                    )


def _tensor_names(path: Path) -> list[str]:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return list(file.keys())
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(f"{path} cannot be read: {error}") from error
