"""Reading a GGUF file: its settings, and its tensors dequantised under their usual names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch

from radixserve.errors import ModelLoadError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import Tensor

_WHOLE_MODEL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
ROPE_FACTORS_NAME = "rope_freqs.weight"


class GGUFFile:
    """An open GGUF file of a Llama-like model.

    Args:
        path: The file.
    Raises:
        ModelLoadError: the file cannot be read as GGUF.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader = _open_reader(path)
        self._values: dict[str, Any] = {}
        self.architecture = str(self.get("general.architecture", ""))

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value stored under `key`, or `default`."""
        if key not in self._values:  # a vocabulary takes the reader a second to unpack
            field = self._reader.get_field(key)
            self._values[key] = None if field is None else field.contents()
        value = self._values[key]
        return default if value is None else value

    def get_model(self, key: str, default: Any = None) -> Any:
        """Return the value of `key` under the architecture's own prefix, or `default`."""
        return self.get(f"{self.architecture}.{key}", default)

    @property
    def tensor_names(self) -> frozenset[str]:
        """The tensors' names as the file has them."""
        return frozenset(tensor.name for tensor in self._reader.tensors)

    @property
    def num_elements(self) -> int:
        """Numbers in all the tensors together."""
        return sum(int(tensor.n_elements) for tensor in self._reader.tensors)

    def read(self, name: str) -> Tensor:
        """Return one tensor, dequantised to float32, as the file has it.

        Raises:
            ModelLoadError: the tensor's quantisation is unknown.
        """
        tensor = next(t for t in self._reader.tensors if t.name == name)
        return self._dequantise(tensor)

    def read_all(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (name in a safetensors checkpoint, float32 tensor) for each weight.

        Raises:
            ModelLoadError: a tensor is unknown or its quantisation is.
        """
        for tensor in self._reader.tensors:
            if tensor.name != ROPE_FACTORS_NAME:
                name = checkpoint_name(tensor.name, self.path)
                yield name, self._unpermute(tensor.name, self._dequantise(tensor))

    def _dequantise(self, tensor: Any) -> Tensor:
        from gguf.quants import dequantize

        try:
            values = dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            raise ModelLoadError(
                f"{self.path}: tensor {tensor.name} is quantised as {tensor.tensor_type.name}, "
                "which cannot be read"
            ) from error
        # Unquantised tensors come as views of the read-only file.
        return torch.from_numpy(values.astype("float32", copy=not values.flags.writeable))

    def _unpermute(self, name: str, weight: Tensor) -> Tensor:
        # GGUF files of the llama architecture interleave the two halves of each rotated head.
        if self.architecture != "llama" or not name.endswith(("attn_q.weight", "attn_k.weight")):
            return weight
        key = "attention.head_count" if "attn_q" in name else "attention.head_count_kv"
        num_heads = int(self.get_model(key, self.get_model("attention.head_count")))
        pairs = weight.view(num_heads, -1, 2, weight.shape[1])
        return pairs.transpose(1, 2).reshape(weight.shape)


def _open_reader(path: Path) -> Any:
    import gguf

    if not hasattr(gguf, "GGUFReader"):
        raise ModelLoadError(
            f"a folder named 'gguf' ({next(iter(gguf.__path__))}) hides the Python package 'gguf'; "
            "rename it or start from another folder"
        )
    try:
        return gguf.GGUFReader(path)
    except (OSError, ValueError, IndexError) as error:
        raise ModelLoadError(f"{path} cannot be read as a GGUF file: {error}") from error


def checkpoint_name(name: str, path: Path) -> str:
    """Return what a safetensors checkpoint calls the GGUF tensor `name`.

    Raises:
        ModelLoadError: the tensor belongs to no architecture that can be loaded.
    """
    if name in _WHOLE_MODEL_NAMES:
        return _WHOLE_MODEL_NAMES[name]
    match = _LAYER_TENSOR.fullmatch(name)
    if match is None or match[2] not in _LAYER_NAMES:
        raise ModelLoadError(f"{path}: tensor {name} is not known")
    return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.{match[3]}"
