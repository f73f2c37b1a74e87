"""Writing a checkpoint of safetensors shards without holding all of it in memory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from safetensors import SafetensorError
from safetensors.torch import save_file

from radixserve.errors import ModelLoadError

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

SHARD_BYTES = 2 << 30


class SafetensorsWriter:
    """Collects tensors and writes a shard whenever enough of them have come together.

    Args:
        folder: Where model.safetensors, or the shards and their index, are written.
        shard_bytes: A shard is closed when the next tensor would take it beyond this.
    """

    def __init__(self, folder: Path, *, shard_bytes: int = SHARD_BYTES) -> None:
        self._folder = folder
        self._shard_bytes = shard_bytes
        self._pending: dict[str, Tensor] = {}
        self._pending_bytes = 0
        self._shards: list[list[str]] = []
        self._total_bytes = 0

    def add(self, name: str, tensor: Tensor) -> None:
        """Take in one tensor, which must not be changed afterwards.

        Raises:
            ModelLoadError: a shard cannot be written.
        """
        if self._pending and self._pending_bytes + tensor.nbytes > self._shard_bytes:
            self._write_shard()
        self._pending[name] = tensor.contiguous()
        self._pending_bytes += tensor.nbytes
        self._total_bytes += tensor.nbytes

    def close(self) -> None:
        """Write what is left and, where there is more than one shard, the index.

        Raises:
            ModelLoadError: a shard cannot be written.
        """
        self._write_shard()
        if len(self._shards) == 1:
            self._temporary_path(0).rename(self._folder / "model.safetensors")
            return
        count = len(self._shards)
        weight_map: dict[str, str] = {}
        for index, names in enumerate(self._shards):
            file_name = f"model-{index + 1:05}-of-{count:05}.safetensors"
            self._temporary_path(index).rename(self._folder / file_name)
            weight_map.update(dict.fromkeys(names, file_name))
        document = {"metadata": {"total_size": self._total_bytes}, "weight_map": weight_map}
        path = self._folder / "model.safetensors.index.json"
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")

    def _write_shard(self) -> None:
        path = self._temporary_path(len(self._shards))
        try:
            save_file(self._pending, path, {"format": "pt"})
        except SafetensorError as error:
            raise ModelLoadError(f"{path} cannot be written: {error}") from error
        self._shards.append(list(self._pending))
        self._pending, self._pending_bytes = {}, 0

    def _temporary_path(self, index: int) -> Path:
        return self._folder / f"shard-{index}.part"
