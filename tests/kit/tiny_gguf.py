"""A tiny model as a GGUF file, written with the `gguf` package from a model folder's weights."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
from gguf.quants import quantize

from tests.kit.tiny_model import random_weights, tiny_config
from tests.kit.tiny_tokenizer import CHATML, SPECIAL_TOKENS, train_tiny_tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

_SUFFIXES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write_tiny_gguf(
    path: Path,
    *,
    family: str = "llama",
    pre: str = "smollm",
    quantisation: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    extra: Mapping[str, Any] | None = None,
    extra_tensors: Mapping[str, np.ndarray[Any, Any]] | None = None,
    **changes: Any,
) -> dict[str, Tensor]:
    """Write a model with the tiny tokenizer and return its weights under a checkpoint's names.

    Args:
        path: The file to write.
        family: llama, qwen2 or qwen3.
        pre: The pre-tokenizer's name.
        quantisation: How the matrices are stored.
        extra: More strings, numbers or booleans for the file's settings.
        extra_tensors: More tensors, under GGUF's names.
        changes: Keys of config.json that differ from `tiny_config`.
    """
    tokenizer = train_tiny_tokenizer()
    config = tiny_config(family, vocab_size=tokenizer.get_vocab_size(), **changes)
    weights = random_weights(config)
    writer = gguf.GGUFWriter(path, family)
    _add_settings(writer, config)
    _add_vocabulary(writer, tokenizer, pre)
    for key, value in (extra or {}).items():
        writer.add_key_value(key, value, _value_type(value))
    for name, tensor in weights.items():
        _add_tensor(writer, name, tensor, config, quantisation)
    for name, array in (extra_tensors or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def _value_type(value: Any) -> gguf.GGUFValueType:
    return gguf.GGUFValueType.get_type(value)


def _add_settings(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])


def _add_vocabulary(writer: gguf.GGUFWriter, tokenizer: Any, pre: str) -> None:
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    types = [3 if token in SPECIAL_TOKENS else 1 for token in tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(CHATML)


def _add_tensor(
    writer: gguf.GGUFWriter,
    name: str,
    tensor: Tensor,
    config: Mapping[str, Any],
    quantisation: gguf.GGMLQuantizationType,
) -> None:
    array = tensor.numpy()
    if writer.arch == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
        array = _interleave(array, config["head_dim"])
    if array.ndim == 2:
        writer.add_tensor(gguf_name(name), quantize(array, quantisation), raw_dtype=quantisation)
    else:
        writer.add_tensor(gguf_name(name), array)


def _interleave(array: np.ndarray[Any, Any], head_dim: int) -> np.ndarray[Any, Any]:
    halves = array.reshape(-1, 2, head_dim // 2, array.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))


def gguf_name(name: str) -> str:
    """Return what GGUF calls the checkpoint's tensor `name`."""
    stem, _, kind = name.rpartition(".")
    if stem in _WHOLE:
        return f"{_WHOLE[stem]}.{kind}"
    _, _, layer, suffix = stem.split(".", 3)
    return f"blk.{layer}.{_SUFFIXES[suffix]}.{kind}"
