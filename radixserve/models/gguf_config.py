"""The config.json and generation_config.json that describe the model in a GGUF file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from radixserve.errors import ModelLoadError
from radixserve.models.gguf_file import ROPE_FACTORS_NAME
from radixserve.models.rotary import inverse_frequencies
from radixserve.models.rotary_config import RotarySpec, parse_rotary

if TYPE_CHECKING:
    from radixserve.models.gguf_file import GGUFFile

_ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
}
_LLAMA3_ORIGINAL_MAX_POSITION = 8192
_CONTROL_TOKEN = 3


def model_config(file: GGUFFile) -> dict[str, Any]:
    """Return config.json for the model in `file`, its weights taken to be bfloat16.

    The rotary settings are written in the old layout (`rope_theta`, `rope_scaling`), which every
    reader knows.

    Raises:
        ModelLoadError: the architecture or its rotary scaling is not known.
    """
    if file.architecture not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise ModelLoadError(
            f"{file.path}: architecture '{file.architecture}' is not supported; known: {known}"
        )
    if file.get_model("expert_count", 0):
        raise ModelLoadError(f"{file.path}: mixture-of-experts models are not supported")
    if file.get("split.count", 1) > 1:
        raise ModelLoadError(f"{file.path} is one part of a split model; join the parts first")
    class_name, model_type = _ARCHITECTURES[file.architecture]
    return {
        "architectures": [class_name],
        "model_type": model_type,
        "hidden_act": "silu",
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": "output.weight" not in file.tensor_names,
        "attention_bias": "blk.0.attn_q.bias" in file.tensor_names,
        **_sizes(file),
        **_rotary(file),
        **_special_ids(file),
    }


def generation_config(file: GGUFFile) -> dict[str, Any]:
    """Return generation_config.json: every id that ends an answer, the end of a turn first."""
    ends = [file.get("tokenizer.ggml.eos_token_id"), file.get("tokenizer.ggml.eot_token_id")]
    # Base-style text ends with <|endoftext|> where the chat turn's end is another token.
    ends.append(_control_token_id(file, "<|endoftext|>"))
    ids = list(dict.fromkeys(int(i) for i in ends if i is not None))
    return {**_special_ids(file), "eos_token_id": ids}


def _control_token_id(file: GGUFFile, token: str) -> int | None:
    tokens = file.get("tokenizer.ggml.tokens", [])
    if token not in tokens:
        return None
    index: int = tokens.index(token)
    return index if file.get("tokenizer.ggml.token_type")[index] == _CONTROL_TOKEN else None


def _special_ids(file: GGUFFile) -> dict[str, int]:
    keys = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    ids = {name: file.get(f"tokenizer.ggml.{key}_token_id") for name, key in keys.items()}
    return {name: int(value) for name, value in ids.items() if value is not None}


def _sizes(file: GGUFFile) -> dict[str, Any]:
    heads = int(file.get_model("attention.head_count"))
    hidden = int(file.get_model("embedding_length"))
    vocab_size = len(file.get("tokenizer.ggml.tokens", ()))
    return {
        "num_hidden_layers": int(file.get_model("block_count")),
        "hidden_size": hidden,
        "intermediate_size": int(file.get_model("feed_forward_length")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(file.get_model("attention.head_count_kv", heads)),
        "head_dim": int(file.get_model("attention.key_length", hidden // heads)),
        "vocab_size": int(file.get_model("vocab_size", vocab_size)),
        "max_position_embeddings": int(file.get_model("context_length")),
        "rms_norm_eps": _shortest(file.get_model("attention.layer_norm_rms_epsilon")),
    }


def _shortest(value: float) -> float:
    # GGUF stores float32, where 1e-05 reads 9.999999747e-06.
    return float(str(np.float32(value)))


def _rotary(file: GGUFFile) -> dict[str, Any]:
    theta = _shortest(file.get_model("rope.freq_base", 10000.0))
    return {"rope_theta": theta, "rope_scaling": _rotary_scaling(file, theta)}


def _rotary_scaling(file: GGUFFile, theta: float) -> dict[str, Any] | None:
    if ROPE_FACTORS_NAME in file.tensor_names:
        return _llama3_scaling(file, theta)
    kind = file.get_model("rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise ModelLoadError(f"{file.path}: rotary scaling '{kind}' is not supported")
    scaling = {"rope_type": kind, "factor": _shortest(file.get_model("rope.scaling.factor"))}
    original = file.get_model("rope.scaling.original_context_length")
    if original is not None:
        scaling["original_max_position_embeddings"] = int(original)
    return scaling


def _llama3_scaling(file: GGUFFile, theta: float) -> dict[str, Any]:
    # GGUF keeps Llama 3's scaling only as the factors that come out of it: find the settings that
    # give these factors, and refuse the file where none do.
    stored = file.read(ROPE_FACTORS_NAME)
    scaling = {
        "rope_type": "llama3",
        "factor": float(stored.max()),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": _LLAMA3_ORIGINAL_MAX_POSITION,
    }
    expected = _llama3_factors(stored.shape[0], theta, scaling)
    if not torch.allclose(stored, expected, rtol=1e-3):
        raise ModelLoadError(f"{file.path}: {ROPE_FACTORS_NAME} is not Llama 3's rotary scaling")
    return scaling


def _llama3_factors(num_pairs: int, theta: float, scaling: dict[str, Any]) -> torch.Tensor:
    config = {"rope_theta": theta, "rope_scaling": scaling}
    head_dim = 2 * num_pairs
    plain, _ = inverse_frequencies(RotarySpec(theta=theta), head_dim)
    scaled, _ = inverse_frequencies(parse_rotary(config), head_dim)
    return plain / scaled
